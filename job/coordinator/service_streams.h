// SPDX-License-Identifier: Apache-2.0
//
// The service's side of open streams: ClientSession, of one client, and HostStream, of a relay.
//
// A stream reads requests and writes events. Events are collected when the stream is ready to
// write, so that a peer that does not read costs nothing. A stream deletes itself when it is done.
//
// Thread-safe. `mutex_` is acquired after all locks of the owner, except that it is acquired before
// the lock of OpenStreams::add_losses().
#ifndef TESSERA_JOB_COORDINATOR_SERVICE_STREAMS_H_
#define TESSERA_JOB_COORDINATOR_SERVICE_STREAMS_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "job/coordinator/open_streams.h"
#include "tessera/job/coordinator/coordinator.grpc.pb.h"

namespace tessera {

// The service, from the view of its streams.
class StreamOwner {
 public:
  virtual ~StreamOwner() = default;
  // Returns whether the service answers the session immediately.
  virtual bool heartbeat(uint64_t session) = 0;
  virtual void sessions_broke(const std::set<uint64_t>& sessions) = 0;
  // Serves a relay's request. Answers go to its stream, while that is open.
  virtual void serve_host(uint64_t stream, const rpc::HostRequest& request) = 0;
};

template <class Request, class Event>
class EventStream : public grpc::ServerBidiReactor<Request, Event>, public NewsStream {
 public:
  void start() { this->StartRead(&request_); }

  void notify() override {
    std::lock_guard<std::mutex> lock(mutex_);
    has_news_ = true;
    write_if_idle();
  }

  void close(bool in_order) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (in_order) {
      is_closing_ = has_news_ = true;
      write_if_idle();
    } else {
      is_ending_ = true;
      finish_if_told();
    }
  }

  void break_off(const grpc::Status& why) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!is_closing_) finish(why);
  }

  void OnReadDone(bool ok) final {
    if (ok) {
      read(request_);
      this->StartRead(&request_);
      return;
    }
    broke();
    std::lock_guard<std::mutex> lock(mutex_);
    finish(grpc::Status::OK);
  }

  void OnWriteDone(bool ok) final {
    std::lock_guard<std::mutex> lock(mutex_);
    is_writing_ = false;
    if (event_.closing()) finish(grpc::Status::OK);
    if (ok) write_if_idle();
    finish_if_told();
  }

  void OnDone() final {
    done();
    delete this;
  }

 protected:
  virtual void read(const Request& request) = 0;
  // The peer sends no more.
  virtual void broke() = 0;
  // Adds the present news to an empty event. Called with mutex_.
  virtual void add_news(Event* event) = 0;
  virtual void done() = 0;

  std::mutex mutex_;  // guards the members below, and the sources of add_news()

 private:
  void finish_if_told() {
    if (!is_ending_ || is_writing_ || has_news_) return;
    finish({grpc::StatusCode::UNAVAILABLE, "the service has ended"});
  }
  void write_if_idle() {
    if (is_finished_ || is_writing_ || !has_news_) return;
    has_news_ = false;
    is_writing_ = true;
    event_.Clear();
    add_news(&event_);
    event_.set_closing(is_closing_);
    this->StartWrite(&event_);
  }
  void finish(const grpc::Status& why) {
    if (!std::exchange(is_finished_, true)) this->Finish(why);
  }

  Event event_;  // being written
  bool has_news_ = false;
  bool is_writing_ = false;
  bool is_closing_ = false;
  bool is_ending_ = false;
  bool is_finished_ = false;

  Request request_;  // being read
};

// One client's open stream: reads heartbeats.
class ClientSession : public EventStream<rpc::Heartbeat, rpc::Event> {
 public:
  ClientSession(StreamOwner* owner, OpenStreams* streams, uint64_t number)
      : owner_(owner), streams_(streams), number_(number) {}

 private:
  void read(const rpc::Heartbeat&) override {
    if (owner_->heartbeat(number_)) notify();
  }
  void broke() override { owner_->sessions_broke({number_}); }
  void add_news(rpc::Event* event) override {
    if (std::exchange(is_first_, false)) event->set_session(number_);
    num_losses_told_ = streams_->add_losses(num_losses_told_, event->mutable_losses());
  }
  void done() override { streams_->remove(number_); }

  StreamOwner* const owner_;
  OpenStreams* const streams_;
  const uint64_t number_;
  size_t num_losses_told_ = 0;
  bool is_first_ = true;
};

// The open stream of a relay: the sessions and calls of the clients of its host.
class HostStream : public EventStream<rpc::HostRequest, rpc::HostEvent> {
 public:
  HostStream(StreamOwner* owner, OpenStreams* streams, uint64_t number)
      : owner_(owner), streams_(streams), number_(number) {}

  void answer(uint64_t call, std::string response) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      rpc::HostAnswer* const answer = next_.add_answers();
      answer->set_number(call);
      answer->set_response(std::move(response));
    }
    notify();
  }
  // Whether this list of members is new to the stream.
  bool takes(const std::shared_ptr<const std::string>& members) {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(members_, members) != members;
  }

 private:
  void read(const rpc::HostRequest& request) override {
    sessions_.insert(request.opened().begin(), request.opened().end());
    owner_->serve_host(number_, request);
    for (const uint64_t session : request.closed()) sessions_.erase(session);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      next_.mutable_answered()->MergeFrom(request.opened());
      next_.mutable_answered()->MergeFrom(request.alive());
    }
    notify();
  }
  void broke() override { owner_->sessions_broke(sessions_); }
  void add_news(rpc::HostEvent* event) override {
    event->Swap(&next_);
    num_losses_told_ = streams_->add_losses(num_losses_told_, event->mutable_losses());
  }
  void done() override { streams_->remove(number_); }

  StreamOwner* const owner_;
  OpenStreams* const streams_;
  const uint64_t number_;
  std::set<uint64_t> sessions_;  // of reads alone, which come one after the other
  rpc::HostEvent next_;
  std::shared_ptr<const std::string> members_;  // the last
  size_t num_losses_told_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_SERVICE_STREAMS_H_
