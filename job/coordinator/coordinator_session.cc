// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator/coordinator_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/format.h"
#include "job/coordinator/coordinator_channel.h"
#include "job/coordinator/id_ranges.h"

namespace tessera {
namespace {

// Before a session that was not answered is opened again.
constexpr absl::Duration kReopenPause = absl::Milliseconds(100);

bool hosted_by_client0(const CoordinatorOptions& options) {
  return options.service_host == ServiceHost::kClient0;
}

}  // namespace

std::string describe_service(const CoordinatorOptions& options) {
  return absl::StrCat("the coordinator at ", options.address,
                      hosted_by_client0(options) ? " (client 0)" : "");
}

const char* why_silent(const CoordinatorOptions& options) {
  return hosted_by_client0(options) ? "client 0 was started"
                                    : "the launcher or tessera_coordinator runs there";
}

Status did_not_answer(const CoordinatorOptions& options) {
  return absl::DeadlineExceededError(
      absl::StrCat("client ", options.self.client_id, ": ",
                   not_in_time(absl::StrCat(describe_service(options), " did not answer"),
                               options.connect_timeout, "within"),
                   "; see whether ", why_silent(options)));
}

CoordinatorSession::CallContext::CallContext(CoordinatorSession& owner, absl::Time deadline)
    : owner_(owner) {
  owner.prepare(context_);
  if (deadline != absl::InfiniteFuture()) {
    context_.set_deadline(to_chrono_wall(deadline + kAnswerGrace));
  }
  std::lock_guard<std::mutex> lock(owner.mutex_);
  owner.calls_.insert(&context_);
  if (!owner.verdict_.ok()) context_.TryCancel();
}

CoordinatorSession::CallContext::~CallContext() {
  {
    std::lock_guard<std::mutex> lock(owner_.mutex_);
    owner_.calls_.erase(&context_);
  }
  owner_.changed_.notify_all();
}

Status CoordinatorSession::open(absl::Time deadline) {
  stub_ = rpc::CoordinatorService::NewStub(create_coordinator_channel(
      options_.relay.empty() ? options_.address : options_.relay, options_.num_clients));
  while (true) {
    TESSERA_RETURN_IF_ERROR(start());
    std::unique_lock<std::mutex> lock(mutex_);
    const auto answered = [this] { return number_ != 0 || !verdict_.ok() || is_cut_off_; };
    if (deadline == absl::InfiniteFuture()) {
      changed_.wait(lock, answered);
    } else if (!changed_.wait_until(lock, to_chrono_steady(deadline), answered)) {
      return did_not_answer(options_);
    }
    if (!is_cut_off_) return verdict_;
    lock.unlock();
    reader_.join();
    heartbeats_.join();
    // Not at once: gRPC waits between attempts to connect, and none of these has failed.
    const absl::Time next = std::min(deadline, steady_now() + kReopenPause);
    lock.lock();
    changed_.wait_until(lock, to_chrono_steady(next), [this] { return over(); });
    if (next == deadline) return did_not_answer(options_);
    is_cut_off_ = false;
  }
}

// Opens a session, and starts its threads. None of the one before runs.
Status CoordinatorSession::start() {
  stream_ = nullptr;
  context_ = std::make_unique<grpc::ClientContext>();
  prepare(*context_);
  context_->set_wait_for_ready(true);
  // The call starts with the first heartbeat, on another thread: this one must not block while
  // the service does not run yet.
  context_->set_initial_metadata_corked(true);
  stream_ = stub_->Session(context_.get());
  TESSERA_ASSIGN_OR_RETURN(
      reader_, start_thread("the events of the coordinator", [this] { read_events(); }));
  TESSERA_ASSIGN_OR_RETURN(
      heartbeats_, start_thread("the heartbeats of this client", [this] { send_heartbeats(); }));
  return absl::OkStatus();
}

void CoordinatorSession::prepare(grpc::ClientContext& context) const {
  context.AddMetadata(kTokenMetadata, token_metadata(options_.token));
}

void CoordinatorSession::joined(absl::Duration heartbeat_interval, std::string service) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    interval_ = heartbeat_interval;
    service_ = std::move(service);
  }
  changed_.notify_all();
}

void CoordinatorSession::read_events() {
  rpc::Event event;
  while (stream_->Read(&event)) {
    note_event(event);
    if (event.closing()) break;
  }
  if (event.closing()) {
    const Status over = absl::CancelledError(
        absl::StrCat("the coordinator at ", options_.address, " has shut down in order"));
    await_answers();
    end(over);
    // If client 0 has shut down, the meshes of the others remain. If a launcher has, the job ends.
    if (!hosted_by_client0(options_) && !leaving_ && !closing()) {
      report_lost(options_.self.client_id, over);
    }
    stream_->Finish();
    return;
  }
  const grpc::Status status = stream_->Finish();
  if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED) {
    end(transport_error(status));
  } else if (status.error_code() == grpc::StatusCode::UNAVAILABLE && number_ == 0) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      is_cut_off_ = true;
    }
    changed_.notify_all();
  } else if (!leaving_ && !closing()) {
    lose_service(options_.relay.empty()
                     ? "its connections broke off"
                     : "its connections through the relay of this host broke off");
  }
}

void CoordinatorSession::note_event(const rpc::Event& event) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    num_unanswered_ = 0;
    if (event.session() != 0) number_ = event.session();
  }
  changed_.notify_all();
  for (const rpc::Loss& loss : event.losses()) {
    const Status reason = absl::UnavailableError(loss.reason());
    IdRanges::of_numbers(loss.clients()).for_each([&](int client) {
      // A client that leaves without the others is told as they are.
      if (client != options_.self.client_id || !leaving_) report_lost(client, reason);
    });
  }
}

// A service that shuts down in order has answered every call before it says so, and the answers may
// arrive after that news: the answer of a check-in on which the others already know the agreement,
// or of a job that cannot start.
void CoordinatorSession::await_answers() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_until(lock, to_chrono_steady(steady_now() + kAnswerGrace),
                      [&] { return calls_.empty() || over(); });
}

void CoordinatorSession::send_heartbeats() {
  const rpc::Heartbeat heartbeat;
  if (!stream_->Write(heartbeat)) return;
  std::unique_lock<std::mutex> lock(mutex_);
  // No heartbeat is counted as unanswered before the first answer: the service may not run yet.
  changed_.wait(lock, [this] { return number_ != 0 || is_cut_off_ || over(); });
  while (!is_cut_off_ && !over()) {
    const absl::Time next = steady_now() + interval_;
    const absl::Duration interval = interval_;
    changed_.wait_until(lock, to_chrono_steady(next),
                        [&] { return over() || interval_ != interval; });
    if (over()) return;
    if (interval_ != interval) continue;
    // Heartbeats are counted, not timed: a client that was stopped sends another one before it
    // declares the service lost.
    const bool is_silent = num_unanswered_++ > kMissedHeartbeats;
    lock.unlock();
    if (is_silent) {
      lose_service(absl::StrCat("it left more than ", kMissedHeartbeats, " heartbeats of ",
                                format_duration(interval), " unanswered"));
      return;
    }
    const bool is_sent = stream_->Write(heartbeat);
    lock.lock();
    if (!is_sent) return;
  }
}

// The service has ended, or this client is closing. Needs mutex_.
bool CoordinatorSession::over() const { return closing_ || !verdict_.ok(); }

bool CoordinatorSession::closing() {
  std::lock_guard<std::mutex> lock(mutex_);
  return closing_;
}

Status CoordinatorSession::verdict() {
  std::lock_guard<std::mutex> lock(mutex_);
  return verdict_;
}

Status CoordinatorSession::await_first_loss() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_until(lock, to_chrono_steady(steady_now() + kAnswerGrace),
                      [&] { return !first_loss_.ok() || !verdict_.ok(); });
  return first_loss_;
}

// Why a call got no answer. If the service has ended, all calls of this client return one status.
Status CoordinatorSession::failure_of(const grpc::Status& status) {
  // A service or a relay that ends cancels the calls that it holds.
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE ||
      status.error_code() == grpc::StatusCode::CANCELLED) {
    // The session ends too; it says whether the service ended in order.
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_until(lock, to_chrono_steady(steady_now() + kAnswerGrace),
                        [&] { return !verdict_.ok(); });
  }
  TESSERA_RETURN_IF_ERROR(verdict());
  return transport_error(status);
}

Status CoordinatorSession::transport_error(const grpc::Status& status) const {
  switch (status.error_code()) {
    case grpc::StatusCode::UNAUTHENTICATED:
      return absl::UnauthenticatedError(absl::StrCat(
          "the coordinator at ", options_.address, " refuses client ", options_.self.client_id,
          ": ", status.error_message(), "; give all clients of the job the same TESSERA_TOKEN"));
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return absl::DeadlineExceededError(
          absl::StrCat(describe_service(options_), " did not answer by the deadline"));
    default:
      return absl::UnavailableError(
          absl::StrCat(describe_service(options_), " does not answer: ", status.error_message()));
  }
}

// Every call that waits for the service, and every later one, returns `verdict`. The first
// verdict is kept.
void CoordinatorSession::end(const Status& verdict) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!verdict_.ok()) return;
    verdict_ = verdict;
    for (grpc::ClientContext* const call : calls_) call->TryCancel();
  }
  changed_.notify_all();
  context_->TryCancel();
}

void CoordinatorSession::lose_service(absl::string_view how) {
  // If this client is lost, the coordinator has declared it so.
  const bool is_declared_lost = losses_.is_lost(options_.self.client_id);
  std::string service;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    service = service_;
  }
  const Status lost = absl::UnavailableError(absl::StrCat(service, " is lost: ", how));
  end(lost);
  if (!is_declared_lost && !leaving_) {
    report_lost(hosted_by_client0(options_) ? 0 : options_.self.client_id, lost);
  }
}

void CoordinatorSession::report_lost(int client, const Status& reason) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (first_loss_.ok()) first_loss_ = reason;
  }
  changed_.notify_all();
  losses_.add(client, reason);
}

void CoordinatorSession::close() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
    if (verdict_.ok()) {
      verdict_ = absl::CancelledError(
          absl::StrCat("client ", options_.self.client_id, " has left the job"));
    }
    // Calls of other threads may have no deadline.
    for (grpc::ClientContext* const call : calls_) call->TryCancel();
  }
  changed_.notify_all();
  if (context_ != nullptr) context_->TryCancel();
  if (reader_.joinable()) reader_.join();
  if (heartbeats_.joinable()) heartbeats_.join();
}

void CoordinatorSession::abandon() {
  (void)stream_.release();
  (void)context_.release();
  (void)stub_.release();
}

}  // namespace tessera
