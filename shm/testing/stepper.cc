// SPDX-License-Identifier: Apache-2.0
#include "shm/testing/stepper.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"

namespace tessera::shm {
namespace {

constexpr size_t kStackBytes = 256 << 10;

uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15 + b + 0x2545f4914f6cdd1d;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

struct Stepper::Fiber {
  enum State { kRunnable, kAsleep, kDone };
  size_t number;
  std::string name;
  std::function<void()> body;
  Cost cost;
  State state = kRunnable;
  bool dead = false;
  bool started = false;
  uintptr_t word = 0;  // on which it sleeps
  bool has_deadline = false;
  bool timed_out = false;
  uint64_t history = 0;  // a hash of the values that it has read
  ucontext_t context;
};

Stepper::Stepper() = default;
Stepper::~Stepper() = default;

int Stepper::add(std::string name, std::function<void()> body, Cost cost) {
  auto fiber = std::make_unique<Fiber>();
  fiber->number = fibers_.size();
  fiber->name = std::move(name);
  fiber->body = std::move(body);
  fiber->cost = cost;
  const size_t index = fibers_.size();
  if (stacks_.size() == index) stacks_.push_back(std::make_unique<char[]>(kStackBytes));
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = stacks_[index].get();
  fiber->context.uc_stack.ss_size = kStackBytes;
  fiber->context.uc_link = nullptr;
  makecontext(&fiber->context, &Stepper::enter, 0);
  fibers_.push_back(std::move(fiber));
  return static_cast<int>(index);
}

void Stepper::map(const void* base, size_t size_bytes, int id) {
  maps_.push_back({reinterpret_cast<uintptr_t>(base), size_bytes, id});
}

uintptr_t Stepper::name_of(const void* word) const {
  const auto address = reinterpret_cast<uintptr_t>(word);
  for (const Map& map : maps_) {
    if (address - map.base < map.size_bytes) {
      return (static_cast<uintptr_t>(map.id) + 1) << 48 | (address - map.base);
    }
  }
  return address;
}

void Stepper::enter() {
  Stepper& stepper = *running_;
  try {
    if (!stepper.current_->dead) stepper.current_->body();
  } catch (const Killed&) {
  }
  stepper.current_->state = Fiber::kDone;
  stepper.reschedule();
}

void Stepper::kill(int fiber) {
  fibers_[fiber]->dead = true;
  memory_ += mix(fiber, 0xdead);
}

void Stepper::step() {
  if (running_ == nullptr || running_->current_ == nullptr) return;
  Stepper& stepper = *running_;
  // Destructors of a fiber that was killed run, but a dead process changes nothing.
  if (stepper.unwinding_) return;
  if (++stepper.steps_ > stepper.options_.most_steps) {
    stepper.fail("livelock");
    throw Killed();  // NOTIDY(banned): takes a fiber that was killed off its stack
  }
  Fiber* const self = stepper.current_;
  stepper.reschedule();
  if (self->dead || stepper.unwinding_)
    throw Killed();  // NOTIDY(banned): takes a fiber that was killed off its stack
}

void Stepper::note(const void* word, uint64_t before, uint64_t after, uint64_t returned) {
  if (running_ == nullptr || running_->current_ == nullptr) return;
  Stepper& stepper = *running_;
  const uintptr_t address = stepper.name_of(word);
  // `memory_` is the sum, over all words, of the hash of the word's value minus the hash of its
  // first value.
  if (before != after) stepper.memory_ += mix(address, after) - mix(address, before);
  stepper.current_->history = mix(stepper.current_->history, mix(address, returned));
}

bool Stepper::park(const void* word, bool has_deadline) {
  Stepper& stepper = *running_;
  Fiber* const self = stepper.current_;
  self->state = Fiber::kAsleep;
  self->word = stepper.name_of(word);
  self->has_deadline = has_deadline;
  self->timed_out = false;
  stepper.reschedule();
  if (self->dead || stepper.unwinding_)
    throw Killed();  // NOTIDY(banned): takes a fiber that was killed off its stack
  self->history = mix(self->history, self->timed_out ? 2 : 1);
  return !self->timed_out;
}

void Stepper::wake(const void* word) {
  if (running_ == nullptr) return;
  const uintptr_t name = running_->name_of(word);
  for (const auto& fiber : running_->fibers_) {
    if (fiber->state == Fiber::kAsleep && fiber->word == name) fiber->state = Fiber::kRunnable;
  }
}

uint64_t Stepper::fingerprint() const {
  uint64_t key = mix(memory_, early_timeouts_);
  // To go on with the fiber that runs takes no preemption.
  const bool may_go_on = current_->state == Fiber::kRunnable && !current_->dead;
  const bool is_bounded = options_.most_preemptions != kUnbounded;
  if (is_bounded && may_go_on) key = mix(key, current_->number + 1);
  for (const auto& fiber : fibers_) {
    key = mix(key, mix(fiber->history, fiber->state * 4 + fiber->started * 2 + fiber->dead));
    if (fiber->state == Fiber::kAsleep) key = mix(key, fiber->word);
  }
  return key;
}

int Stepper::choose(int num_alternatives) {
  if (num_alternatives == 1) return 0;
  if (depth_ == trail_.size()) {
    if (!seen_before_) {
      const auto [place, is_new] = seen_.try_emplace(fingerprint(), preemptions_);
      const bool is_bounded = options_.most_preemptions != kUnbounded;
      seen_before_ = !is_new && (!is_bounded || place->second <= preemptions_);
      place->second = std::min(place->second, preemptions_);
    }
    // A run through known states goes on to its end without alternatives.
    if (seen_before_) return 0;
    trail_.push_back({num_alternatives, 0});
  }
  TESSERA_CHECK(trail_[depth_].num_alternatives == num_alternatives, "fibers are deterministic");
  return trail_[depth_++].chosen;
}

// Decides which fiber goes on, where the current one may, sleeps or is done.
void Stepper::reschedule() {
  Fiber* const self = current_;
  const auto can_run = [](const Fiber& fiber) {
    return fiber.state == Fiber::kRunnable && !fiber.dead;
  };
  if (unwinding_) {
    if (self->state == Fiber::kDone) switch_to(nullptr);
    return;
  }
  const bool may_go_on = can_run(*self);
  const bool may_preempt = !may_go_on || preemptions_ < options_.most_preemptions;
  const bool any_runs =
      std::any_of(fibers_.begin(), fibers_.end(), [&](const auto& f) { return can_run(*f); });
  std::vector<Fiber*> alternatives;
  if (may_go_on) alternatives.push_back(self);
  for (const auto& fiber : fibers_) {
    if (fiber.get() == self && may_go_on) continue;
    const bool runs = can_run(*fiber) && (may_preempt || fiber->cost == Cost::kFree);
    if (runs) alternatives.push_back(fiber.get());
  }
  const bool may_time_out = !any_runs || (preemptions_ < options_.most_preemptions &&
                                          early_timeouts_ < options_.most_early_timeouts);
  for (const auto& fiber : fibers_) {
    const bool is_asleep = fiber->state == Fiber::kAsleep && !fiber->dead && fiber->has_deadline;
    if (is_asleep && may_time_out) alternatives.push_back(fiber.get());
  }
  if (alternatives.empty()) {
    for (const auto& fiber : fibers_) {
      if (fiber->state != Fiber::kDone && !fiber->dead) fail("deadlock");
    }
    switch_to(nullptr);
    return;
  }
  Fiber* const next = alternatives[choose(static_cast<int>(alternatives.size()))];
  const bool times_out = next->state == Fiber::kAsleep;
  if (any_runs && next != self && next->cost != Cost::kFree && (may_go_on || times_out)) {
    ++preemptions_;
  }
  if (times_out) {
    if (any_runs) ++early_timeouts_;
    next->timed_out = true;
    next->state = Fiber::kRunnable;
  }
  if (next == self) return;
  absl::StrAppend(&schedule_, " ", steps_, ":", next->name, times_out ? " times out" : "");
  switch_to(next);
}

// Null: back to run_once().
void Stepper::switch_to(Fiber* next) {
  Fiber* const self = current_;
  current_ = next;
  if (next != nullptr) next->started = true;
  ucontext_t* const from = self == nullptr ? &main_ : &self->context;
  swapcontext(from, next == nullptr ? &main_ : &next->context);
}

void Stepper::fail(std::string what) {
  if (failure_.empty()) failure_ = absl::StrCat(what, ", schedule", schedule_);
}

void Stepper::run_once() {
  switch_to(fibers_[0].get());
  // A fiber that is in the middle of a call is ended there.
  unwinding_ = true;
  for (const auto& fiber : fibers_) {
    if (fiber->state != Fiber::kDone && fiber->started) switch_to(fiber.get());
  }
  unwinding_ = false;
}

Stepper::Result Stepper::explore(const Options& options, std::function<void()> begin,
                                 std::function<std::string()> check) {
  options_ = options;
  trail_.clear();
  seen_.clear();
  Result result;
  while (result.num_runs < options.most_runs) {
    fibers_.clear();
    depth_ = 0;
    preemptions_ = 0;
    early_timeouts_ = 0;
    steps_ = 0;
    memory_ = 0;
    seen_before_ = false;
    failure_.clear();
    schedule_.clear();
    begin();
    running_ = this;
    run_once();
    running_ = nullptr;
    ++result.num_runs;
    const std::string wrong = check();
    if (failure_.empty() && !wrong.empty()) fail(wrong);
    if (!failure_.empty()) break;
    while (!trail_.empty() && trail_.back().chosen + 1 == trail_.back().num_alternatives) {
      trail_.pop_back();
    }
    result.complete = trail_.empty();
    if (result.complete) break;
    ++trail_.back().chosen;
  }
  result.num_states = static_cast<int64_t>(seen_.size());
  result.failure = failure_;
  return result;
}

bool sleep_while(SteppedWord<uint32_t>& word, uint32_t value, absl::Time deadline) {
  const bool has_deadline = deadline != absl::InfiniteFuture();
  if (!Stepper::is_running()) return !has_deadline;
  if (word.load() != value) return true;
  return Stepper::park(&word, has_deadline);
}

void wake_all(SteppedWord<uint32_t>& word) {
  Stepper::step();
  Stepper::wake(&word);
}

}  // namespace tessera::shm
