// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator/upstream.h"

#include <utility>

#include "job/coordinator/coordinator_channel.h"

namespace tessera {

StatusOr<std::unique_ptr<Upstream>> Upstream::create(const std::string& address,
                                                     const std::string& token, int num_clients,
                                                     Handler handler) {
  std::unique_ptr<Upstream> upstream(new Upstream(token, std::move(handler)));
  upstream->stub_ =
      rpc::CoordinatorService::NewStub(create_coordinator_channel(address, num_clients));
  Upstream* const self = upstream.get();
  TESSERA_ASSIGN_OR_RETURN(upstream->thread_, start_thread("the relay's stream to the coordinator",
                                                           [self] { self->run(); }));
  return upstream;
}

template <class Change>
void Upstream::change(const Change& change) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    change();
    has_next_ = true;
  }
  changed_.notify_all();
}

void Upstream::open(uint64_t session) {
  change([&] { next_.add_opened(session); });
}
void Upstream::beat(uint64_t session) {
  change([&] { next_.add_alive(session); });
}
void Upstream::close(uint64_t session) {
  change([&] { next_.add_closed(session); });
}

void Upstream::call(rpc::HostCall::Method method, std::string request, Done done) {
  bool is_over = false;
  change([&] {
    is_over = stopping_;
    if (is_over) return;
    rpc::HostCall& call = unsent_.emplace_back();
    call.set_number(++last_call_);
    call.set_method(method);
    call.set_request(std::move(request));
    calls_.emplace(last_call_, std::move(done));
  });
  if (is_over) done({grpc::StatusCode::UNAVAILABLE, "the relay has ended"}, "");
}

void Upstream::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    if (context_ != nullptr) context_->TryCancel();
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Upstream::run() {
  while (true) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return has_next_ || stopping_; });
      if (!stopping_) {
        context_ = std::make_unique<grpc::ClientContext>();
        is_reading_ = true;
      }
    }
    const grpc::Status why =
        context_ == nullptr ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "the relay has ended")
                            : run_stream();
    fail_calls(why);
    handler_.broke(why);
    std::lock_guard<std::mutex> lock(mutex_);
    context_ = nullptr;
    if (stopping_) return;
  }
}

grpc::Status Upstream::run_stream() {
  context_->AddMetadata(kTokenMetadata, token_);
  context_->set_wait_for_ready(true);
  // Opened by the first write, on the other thread.
  context_->set_initial_metadata_corked(true);
  const auto stream = stub_->Host(context_.get());
  StatusOr<Thread> writer =
      start_thread("what a relay sends", [&] { write_requests(stream.get()); });
  if (!writer.ok()) context_->TryCancel();
  rpc::HostEvent event;
  while (stream->Read(&event)) note_event(event);
  const grpc::Status why = stream->Finish();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_reading_ = false;
  }
  changed_.notify_all();
  if (writer.ok()) writer->join();
  if (!why.ok()) return why;
  return {grpc::StatusCode::UNAVAILABLE, "the coordinator has ended"};
}

void Upstream::write_requests(grpc::ClientReaderWriter<rpc::HostRequest, rpc::HostEvent>* stream) {
  rpc::HostRequest request;
  do {
    request.Clear();
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return has_next_ || !is_reading_; });
    if (!is_reading_) return;
    take_next(&request);
  } while (stream->Write(request));
}

// The sessions that begin and live, and calls up to the size of a message; the sessions that end
// when no call is left, because they may have made it.
void Upstream::take_next(rpc::HostRequest* request) {
  request->mutable_opened()->Swap(next_.mutable_opened());
  request->mutable_alive()->Swap(next_.mutable_alive());
  for (size_t bytes = 0; !unsent_.empty() && bytes < kMostBatchedBytes; unsent_.pop_front()) {
    bytes += unsent_.front().request().size();
    *request->add_calls() = std::move(unsent_.front());
  }
  has_next_ = !unsent_.empty();
  if (unsent_.empty()) request->mutable_closed()->Swap(next_.mutable_closed());
}

void Upstream::note_event(const rpc::HostEvent& event) {
  if (event.losses_size() > 0) handler_.lost(event);
  for (const rpc::HostAnswer& answer : event.answers()) {
    Done done;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto call = calls_.find(answer.number());
      if (call == calls_.end()) continue;
      done = std::move(call->second);
      calls_.erase(call);
    }
    done(grpc::Status::OK, answer.response());
  }
  for (const uint64_t session : event.answered()) handler_.answered(session);
  if (event.closing()) handler_.closing();
}

void Upstream::fail_calls(const grpc::Status& why) {
  std::map<uint64_t, Done> failed;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    failed.swap(calls_);
    next_.Clear();
    unsent_.clear();
    has_next_ = false;
  }
  for (const auto& [number, done] : failed) done(why, "");
}

}  // namespace tessera
