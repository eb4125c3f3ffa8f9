// SPDX-License-Identifier: Apache-2.0
//
// Stepper: runs the members of a protocol as fibers of one thread, in every order of their accesses
// to shared words. For tests that are compiled with TESSERA_STEPS.
//
//   Stepper stepper;
//   Stepper::Result result = stepper.explore({.most_preemptions = 2}, [&] {
//     ... puts shared memory into its first state ...
//     stepper.add("member 0", [&] { ... });
//     stepper.add("member 1", [&] { ... });
//   }, [&] { return ... what is wrong after the run, or ""; });
//
// Before each access to a SharedWord, and at each step(), the running fiber may be preempted for
// another. A run is repeated from its beginning with another choice at the last point that has an
// untried choice, until no such point is left: a depth-first search over schedules.
//
// Invariants:
//   1. fibers are deterministic: their steps depend only on the values that they have read;
//   2. a fiber in sleep_while() runs on when its word is woken. A fiber with a deadline also runs
//      on as if the deadline had passed: at any time at the cost of a preemption, and at no cost
//      where no other fiber can run;
//   3. a state that was seen with as many preemptions left is not explored again. A state is: the
//      shared words, the values that each fiber has read, and the fiber that runs. Any other data
//      that fibers share must follow from these.
//
// A killed fiber takes no further step, as a process that gets SIGKILL.
#ifndef TESSERA_SHM_TESTING_STEPPER_H_
#define TESSERA_SHM_TESTING_STEPPER_H_

#include <ucontext.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace tessera::shm {

class Stepper {
 public:
  static constexpr int kUnbounded = 1 << 30;
  struct Options {
    int most_preemptions = kUnbounded;
    int most_early_timeouts = 2;  // of a run: deadlines that pass while another fiber can run
    int64_t most_runs = 1'000'000;
    int64_t most_steps = 5000;  // of a run: more is a livelock
  };
  struct Result {
    int64_t num_runs = 0;
    int64_t num_states = 0;
    bool complete = false;  // every schedule was explored
    std::string failure;    // of the last run; empty: none. With its schedule
  };

  Stepper();
  ~Stepper();

  Result explore(const Options& options, std::function<void()> begin,
                 std::function<std::string()> check);

  // Clients map the same words at different addresses: the memory at `base` is region `id`.
  void map(const void* base, size_t size_bytes, int id);
  void forget_maps() { maps_.clear(); }

  // To be called by `begin`. A free fiber may run at any time at no cost.
  enum class Cost { kPreemption, kFree };
  int add(std::string name, std::function<void()> body, Cost cost = Cost::kPreemption);
  // To be called by a fiber, not of itself.
  void kill(int fiber);

  // Called by SteppedWord, sleep_while() and wake_all(). Outside of fibers they do nothing.
  static void step();
  static void note(const void* word, uint64_t before, uint64_t after, uint64_t returned);
  static bool park(const void* word, bool has_deadline);
  static void wake(const void* word);
  static bool is_running() { return running_ != nullptr; }

 private:
  struct Killed {};
  struct Fiber;
  struct Choice {
    int num_alternatives;
    int chosen;
  };

  static void enter();
  void run_once();
  void reschedule();
  void switch_to(Fiber* next);
  int choose(int num_alternatives);
  uint64_t fingerprint() const;
  // The name of a word, wherever it is mapped.
  uintptr_t name_of(const void* word) const;
  void fail(std::string what);

  static inline Stepper* running_ = nullptr;

  struct Map {
    uintptr_t base;
    size_t size_bytes;
    int id;
  };

  Options options_;
  std::vector<Map> maps_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<std::unique_ptr<char[]>> stacks_;
  ucontext_t main_;
  Fiber* current_ = nullptr;
  std::vector<Choice> trail_;
  size_t depth_ = 0;
  bool seen_before_ = false;
  int preemptions_ = 0;
  int early_timeouts_ = 0;
  int64_t steps_ = 0;
  uint64_t memory_ = 0;  // a hash of the shared words that were written
  bool unwinding_ = false;
  std::unordered_map<uint64_t, int> seen_;  // the fewest preemptions that led to each state
  std::string failure_;
  std::string schedule_;
};

// A point at which another member may act, between accesses to shared words.
inline void step() { Stepper::step(); }

template <class T>
class SteppedWord {
 public:
  T load(std::memory_order order = std::memory_order_seq_cst) const {
    Stepper::step();
    const T value = word_.load(order);
    Stepper::note(this, 0, 0, bits(value));
    return value;
  }
  operator T() const { return load(); }
  void store(T value, std::memory_order order = std::memory_order_seq_cst) {
    Stepper::step();
    Stepper::note(this, bits(word_.load()), bits(value), 0);
    word_.store(value, order);
  }
  T operator=(T value) {
    store(value);
    return value;
  }
  T fetch_add(T by, std::memory_order order = std::memory_order_seq_cst) {
    Stepper::step();
    const T before = word_.fetch_add(by, order);
    Stepper::note(this, bits(before), bits(static_cast<T>(before + by)), bits(before));
    return before;
  }
  T fetch_sub(T by, std::memory_order order = std::memory_order_seq_cst) {
    return fetch_add(static_cast<T>(0 - by), order);
  }
  bool compare_exchange_strong(T& expected, T desired,
                               std::memory_order order = std::memory_order_seq_cst) {
    Stepper::step();
    const T before = expected;
    const bool done = word_.compare_exchange_strong(expected, desired, order);
    Stepper::note(this, done ? bits(before) : 0, done ? bits(desired) : 0,
                  bits(expected) * 2 + (done ? 1 : 0));
    return done;
  }
  bool compare_exchange_weak(T& expected, T desired,
                             std::memory_order order = std::memory_order_seq_cst) {
    return compare_exchange_strong(expected, desired, order);
  }

 private:
  static uint64_t bits(T value) { return static_cast<uint64_t>(value); }
  std::atomic<T> word_;
};

// As in shared_word.h.
bool sleep_while(SteppedWord<uint32_t>& word, uint32_t value, absl::Time deadline);
void wake_all(SteppedWord<uint32_t>& word);

}  // namespace tessera::shm

#endif  // TESSERA_SHM_TESTING_STEPPER_H_
