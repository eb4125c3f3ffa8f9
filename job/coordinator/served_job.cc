// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator/served_job.h"

#include <utility>

#include "base/clock.h"
#include "job/coordinator/device_wait_messages.h"
#include "job/coordinator/id_ranges.h"
#include "job/coordinator/member_list.h"

namespace tessera {
namespace {

absl::Time deadline_of(int64_t timeout_us) { return steady_now() + absl::Microseconds(timeout_us); }

void fill(rpc::Outcome* outcome, const Status& status) {
  outcome->set_code(static_cast<int>(status.code()));
  outcome->set_message(std::string(status.message()));
}

MemberInfo member_of(const rpc::Member& member) {
  MemberInfo info;
  info.client_id = member.client_id();
  info.host = member.host();
  info.host_id = member.host_id();
  info.pid = member.pid();
  info.incarnation = member.incarnation();
  info.num_local_devices = member.num_local_devices();
  info.device_type = member.device_type();
  info.arithmetic = member.arithmetic();
  info.build = member.build();
  return info;
}

std::function<void(const Status&)> outcome_in(rpc::Outcome* response) {
  return [response](const Status& status) { fill(response, status); };
}
std::function<void(const StatusOr<std::string>&)> value_in(rpc::GetResponse* response) {
  return [response](const StatusOr<std::string>& value) {
    fill(response->mutable_outcome(), value.status());
    if (value.ok()) response->set_value(*value);
  };
}
}  // namespace

ServedJob::ServedJob(CoordinatorState::Options options, std::function<void(const Losses&)> tell)
    : state_(std::move(options)) {
  state_.set_loss_listener([tell](const std::vector<CoordinatorState::Loss>& lost) {
    Losses losses;
    for (const auto& [clients, reason] : lost) {
      rpc::Loss& loss = *losses.Add();
      const std::vector<int32_t> numbers = clients.to_numbers();
      loss.mutable_clients()->Assign(numbers.begin(), numbers.end());
      loss.set_reason(std::string(reason.message()));
    }
    tell(losses);
  });
}

Status ServedJob::start_timer() {
  TESSERA_ASSIGN_OR_RETURN(timer_,
                           start_thread("the timer of the coordinator", [this] { run_timer(); }));
  return absl::OkStatus();
}

template <class Change>
void ServedJob::change(const Change& change) {
  Callbacks callbacks;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Callbacks answers;
    change(answers);
    callbacks = state_.take_callbacks();
    for (std::function<void()>& ready : answers) callbacks.push_back(std::move(ready));
    if (stopping_ || state_.next_event() < timer_wakes_) timer_changed_.notify_one();
    if (callbacks.empty()) return;
    ++num_answering_;
  }
  for (const std::function<void()>& callback : callbacks) callback();
  std::lock_guard<std::mutex> lock(mutex_);
  if (--num_answering_ == 0) answered_.notify_all();
}

void ServedJob::run_timer() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    state_.advance(steady_now());
    const Callbacks callbacks = state_.take_callbacks();
    if (!callbacks.empty()) {
      lock.unlock();
      for (const std::function<void()>& callback : callbacks) callback();
      lock.lock();
      continue;
    }
    timer_wakes_ = state_.next_event();
    if (timer_wakes_ == absl::InfiniteFuture()) {
      timer_changed_.wait(lock);
    } else {
      timer_changed_.wait_until(lock, to_chrono_steady(timer_wakes_));
    }
    // Changes need not wake a thread that is about to look.
    timer_wakes_ = absl::InfinitePast();
  }
}

void ServedJob::stop() {
  change([&](Callbacks&) {
    state_.stop();
    stopping_ = true;
  });
  if (timer_.joinable()) timer_.join();
  std::unique_lock<std::mutex> lock(mutex_);
  answered_.wait(lock, [this] { return num_answering_ == 0; });
}

void ServedJob::note_alive(absl::Span<const uint64_t> opened, absl::Span<const uint64_t> alive) {
  change([&](Callbacks&) {
    for (const uint64_t session : opened) registered_[session] = false;
    for (const uint64_t session : alive) state_.heartbeat(session);
  });
}

void ServedJob::sessions_broke(const std::set<uint64_t>& sessions) {
  change([&](Callbacks&) {
    for (const uint64_t session : sessions) {
      state_.disconnected(session);
      registered_.erase(session);
    }
  });
}

template <class FillIn, class Body>
void ServedJob::run(uint64_t session, const FillIn& fill_in, const Finish& finish,
                    const Body& body) {
  const auto done = [fill_in, finish](const auto& result) {
    fill_in(result);
    finish();
  };
  change([&](Callbacks& answers) {
    const StatusOr<int> client = state_.client_of(session);
    if (client.ok()) {
      body(*client, done, answers);
    } else {
      answers.push_back([done, refused = client.status()] { done(refused); });
    }
  });
}

void ServedJob::handle(const rpc::RegisterRequest& request, rpc::RegisterResponse* response,
                       const Finish& finish) {
  CoordinatorState::Registration registration;
  registration.member = member_of(request.member());
  registration.num_clients = request.num_clients();
  registration.job = request.job();
  registration.connect_timeout = absl::Microseconds(request.connect_timeout_us());
  registration.heartbeat_interval = absl::Microseconds(request.heartbeat_interval_us());
  const auto done = [this, response, finish](const Status& status) {
    fill(response->mutable_outcome(), status);
    if (status.ok()) {
      std::lock_guard<std::mutex> lock(mutex_);
      response->set_heartbeat_interval_us(
          absl::ToInt64Microseconds(state_.registrations().heartbeat_interval()));
    }
    finish();
  };
  bool is_known = false;
  change([&](Callbacks&) {
    const auto session = registered_.find(request.session());
    is_known = session != registered_.end() && !std::exchange(session->second, true);
    if (!is_known) return;
    state_.register_client(request.session(), registration, steady_now(),
                           deadline_of(request.timeout_us()), done);
  });
  if (!is_known) {
    done(absl::FailedPreconditionError(
        "a client registers once, while its session is open; connect again"));
  }
}

void ServedJob::handle(const rpc::PutRequest& request, rpc::Outcome* response,
                       const Finish& finish) {
  run(request.session(), outcome_in(response), finish,
      [&](int, const auto& done, Callbacks& answers) {
        answers.push_back([done, status = state_.key_values().put(request.key(), request.value())] {
          done(status);
        });
      });
}

void ServedJob::handle(const rpc::GetRequest& request, rpc::GetResponse* response,
                       const Finish& finish) {
  run(request.session(), value_in(response), finish, [&](int client, const auto& done, Callbacks&) {
    const absl::Time deadline = deadline_of(request.timeout_us());
    if (request.is_proposal()) {
      state_.key_values().get_proposal(client, request.key(), request.number(), request.setter(),
                                       deadline, done);
    } else {
      state_.key_values().get(client, request.key(), request.setter(), deadline, done);
    }
  });
}

void ServedJob::handle(const rpc::ProposeRequest& request, rpc::GetResponse* response,
                       const Finish& finish) {
  run(request.session(), value_in(response), finish,
      [&](int, const auto& done, Callbacks& answers) {
        answers.push_back(
            [done, value = state_.key_values().propose(request.series(), request.number(),
                                                       request.value())] { done(value); });
      });
}

void ServedJob::handle(const rpc::CheckInRequest& request, rpc::Outcome* response,
                       const Finish& finish) {
  CheckIns::Call call = {0, request.name(), request.value(),
                         IdRanges::of_numbers(request.participants())};
  run(request.session(), outcome_in(response), finish,
      [&](int client, const auto& done, Callbacks&) {
        call.client = client;
        call.deadline = deadline_of(request.timeout_us());
        state_.check_ins().check_in(std::move(call), steady_now(), done);
      });
}

void ServedJob::handle(const rpc::LeaveRequest& request, rpc::Outcome* response,
                       const Finish& finish) {
  run(request.session(), outcome_in(response), finish,
      [&](int client, const auto& done, Callbacks&) {
        state_.leave(client, steady_now(), deadline_of(request.timeout_us()), done);
      });
}

void ServedJob::handle(const rpc::AwaitedRequest& request, rpc::AwaitedAnswer* response,
                       const Finish& finish) {
  std::vector<AwaitedCall> calls;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    calls = state_.awaited(request.session());
  }
  for (const AwaitedCall& call : calls) {
    rpc::AwaitedAnswer::Call& answer = *response->add_calls();
    answer.set_kind(call.kind);
    answer.set_text(call.text);
    answer.set_num_clients(call.num_clients);
    const std::vector<int32_t> missing = IdRanges::of(call.missing).to_numbers();
    answer.mutable_missing()->Assign(missing.begin(), missing.end());
    const std::vector<int32_t> silent = IdRanges::of(call.silent).to_numbers();
    answer.mutable_silent()->Assign(silent.begin(), silent.end());
  }
  finish();
}

void ServedJob::handle(const rpc::WaitsRequest& request, rpc::WaitsAnswer* response,
                       const Finish& finish) {
  const auto step_in = [response](const StatusOr<CircleStep>& step) {
    fill(response->mutable_outcome(), step.status());
    if (!step.ok()) return;
    response->set_kind(step->kind);
    response->set_circle(step->number);
    response->set_at(step->at);
    write_waits(step->waits, response->mutable_waits());
    write_waits(step->named, response->mutable_named());
  };
  run(request.session(), step_in, finish, [&](int client, const auto& done, Callbacks&) {
    state_.report_waits(client,
                        {.waits = read_waits(request.waits()),
                         .circle = request.circle(),
                         .at = request.at(),
                         .is_done = request.is_done()},
                        steady_now(), deadline_of(request.timeout_us()), done);
  });
}

std::shared_ptr<const std::string> ServedJob::members() {
  std::lock_guard<std::mutex> lock(mutex_);
  const Registrations& registrations = state_.registrations();
  if (job_of_members_ != registrations.num_jobs()) {
    members_ = std::make_shared<const std::string>(encode_members(registrations.members()));
    job_of_members_ = registrations.num_jobs();
  }
  return members_;
}

}  // namespace tessera
