// SPDX-License-Identifier: Apache-2.0
//
// OpenStreams: the open streams of a service by number, and the losses that all of them report.
//
//   tell(losses) --> every stream: notify() --> the stream, when it is ready to write: add_losses()
//
// Invariants:
//   1. a stream is here from add() until remove(), which it calls before it deletes itself;
//   2. each stream tells every loss once, in the order in which they were told here.
//
// Thread-safe. Lock order: the lock of the job before the lock of the streams; the lock of the
// losses after all others.
#ifndef TESSERA_JOB_COORDINATOR_OPEN_STREAMS_H_
#define TESSERA_JOB_COORDINATOR_OPEN_STREAMS_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <random>
#include <unordered_map>

#include "tessera/job/coordinator/coordinator.grpc.pb.h"

namespace tessera {

// The interface of a stream to the owner of streams of several kinds.
class NewsStream {
 public:
  virtual ~NewsStream() = default;
  // Tells the stream that there is news.
  virtual void notify() = 0;
  // Sends the peer the remaining news, and, if the service ends in order, the news of that
  // (Event::closing); then the stream ends.
  virtual void close(bool in_order) = 0;
  // Ends the stream immediately, with this status, unless it is being closed in order.
  virtual void break_off(const grpc::Status& why) = 0;
};

class OpenStreams {
 public:
  using Losses = google::protobuf::RepeatedPtrField<rpc::Loss>;

  // A number for a stream, which no other process can guess.
  uint64_t random_number() {
    std::lock_guard<std::mutex> lock(mutex_);
    return uint64_t{random_()} << 32 | random_();
  }
  // False if streams are closed for good: the caller closes this one.
  bool add(uint64_t number, NewsStream* stream) {
    std::lock_guard<std::mutex> lock(mutex_);
    streams_[number] = stream;
    return !is_closed_;
  }
  void remove(uint64_t number) {
    std::lock_guard<std::mutex> lock(mutex_);
    streams_.erase(number);
  }

  // Calls `body(stream)` with the stream of this number, while that is open. Needs the type with
  // which it was added.
  template <class Stream, class Body>
  void with(uint64_t number, const Body& body) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto stream = streams_.find(number);
    if (stream != streams_.end()) body(static_cast<Stream&>(*stream->second));
  }

  void tell(const Losses& losses) {
    {
      std::lock_guard<std::mutex> lock(losses_mutex_);
      losses_.MergeFrom(losses);
    }
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [number, stream] : streams_) stream->notify();
  }
  // Adds the losses from the num_told-th on; returns the number of all losses.
  size_t add_losses(size_t num_told, Losses* losses) {
    std::lock_guard<std::mutex> lock(losses_mutex_);
    for (int i = static_cast<int>(num_told); i < losses_.size(); ++i) *losses->Add() = losses_[i];
    return losses_.size();
  }

  // `for_good`: later ones are closed too.
  void close(bool in_order, bool for_good) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (for_good) is_closed_ = true;
    for (const auto& [number, stream] : streams_) stream->close(in_order);
  }
  // In a relay whose stream to the service has ended: another stream begins with its first news.
  void break_off(const grpc::Status& why) {
    {
      std::lock_guard<std::mutex> lock(losses_mutex_);
      losses_.Clear();
    }
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_closed_) return;  // in its own way
    for (const auto& [number, stream] : streams_) stream->break_off(why);
  }

 private:
  std::mutex mutex_;  // guards the members below
  std::unordered_map<uint64_t, NewsStream*> streams_;
  bool is_closed_ = false;
  std::random_device random_;

  std::mutex losses_mutex_;  // guards losses_
  Losses losses_;
};

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_OPEN_STREAMS_H_
