// SPDX-License-Identifier: Apache-2.0
//
// CpuStream: the stream of a CPU device, one worker thread.
//
// One thread a device, so that a device which waits for its peers never keeps another device of
// the same client from running: no number of devices can deadlock a collective among them.
#ifndef TESSERA_DEVICE_CPU_CPU_STREAM_H_
#define TESSERA_DEVICE_CPU_CPU_STREAM_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "device/stream.h"

namespace tessera {

class CpuStream : public Stream {
 public:
  // `observer` may be null; it must outlive the stream.
  explicit CpuStream(StreamObserver* observer);
  ~CpuStream() override;

  // Runs what is queued, then ends the worker; what is enqueued later runs on the caller's thread.
  void stop();

  void enqueue(std::string label, Task task) override;
  Status sync() override;

 private:
  struct Entry {
    std::string label;
    Task task;
  };

  void run();

  StreamObserver* const observer_;
  std::mutex mutex_;  // guards everything below
  std::condition_variable work_added_;
  std::condition_variable work_done_;
  std::deque<Entry> queue_;
  uint64_t num_enqueued_ = 0;
  uint64_t num_done_ = 0;
  Status first_error_;
  bool stopping_ = false;
  std::thread worker_;
};

}  // namespace tessera

#endif  // TESSERA_DEVICE_CPU_CPU_STREAM_H_
