// SPDX-License-Identifier: Apache-2.0
//
// RunningCalls: the elements for which an operation is calling a function of the program, or a
// source. Reports of long waits read it. Internal to input/.
//
//   const RunningCalls::Call call(calls, 12);     for as long as the function runs
//   calls.describe("map", &texts);                adds "map is at element 12"
//
// A call costs two stores, and no lock and no clock: each thread has its own place. Threads beyond
// kNumPlaces share places; a shared place shows the call that began last.
//
// Thread-safe.
#ifndef TESSERA_INPUT_RUNNING_CALLS_H_
#define TESSERA_INPUT_RUNNING_CALLS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tessera::input::internal {

class RunningCalls {
 private:
  static constexpr int kNumPlaces = 16;
  static constexpr int64_t kNone = -1;
  struct alignas(64) Place {
    std::atomic<int64_t> element{kNone};
  };

 public:
  // A call by the calling thread, from construction to destruction.
  class Call {
   public:
    Call(const RunningCalls& calls, int64_t element) : place_(calls.places_[place_of_thread()]) {
      place_.element.store(element, std::memory_order_relaxed);
    }
    ~Call() { place_.element.store(kNone, std::memory_order_relaxed); }
    Call(const Call&) = delete;

   private:
    Place& place_;
  };

  // Adds a text with the elements of the running calls, if there are any.
  void describe(absl::string_view function, std::vector<std::string>* texts) const;

 private:
  static int place_of_thread() {
    static std::atomic<unsigned> num_threads{0};
    thread_local const unsigned thread = num_threads.fetch_add(1, std::memory_order_relaxed);
    return static_cast<int>(thread % kNumPlaces);
  }

  mutable std::array<Place, kNumPlaces> places_;
};

}  // namespace tessera::input::internal

#endif  // TESSERA_INPUT_RUNNING_CALLS_H_
