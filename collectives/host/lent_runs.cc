// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/lent_runs.h"

#include <utility>

#include "collectives/host/control.h"

namespace tessera::host {

void LentRuns::lend(std::shared_ptr<Lendable> run, uint32_t seq) {
  Lendable& lent = *run;
  lent.seq_ = seq;
  lent.self_ = std::move(run);
  num_lent_.fetch_add(1, std::memory_order_relaxed);
  push(lent);
}

void LentRuns::push(Lendable& run) {
  run.next_ = top_.load(std::memory_order_relaxed);
  while (!top_.compare_exchange_weak(run.next_, &run, std::memory_order_release,
                                     std::memory_order_relaxed)) {
  }
}

void LentRuns::release(Lendable& run) {
  std::exchange(run.self_, nullptr).reset();
  num_lent_.fetch_sub(1, std::memory_order_release);
}

uint32_t LentRuns::reap(IsOver is_over) {
  uint32_t oldest = 0;
  Lendable* run = top_.exchange(nullptr, std::memory_order_acquire);
  while (run != nullptr) {
    Lendable* const next = run->next_;
    const uint32_t seq = run->seq_;
    if (is_over(*run)) {
      release(*run);
    } else {
      if (oldest == 0 || is_later(oldest, seq)) oldest = seq;
      push(*run);
    }
    run = next;
  }
  return oldest;
}

void LentRuns::clear(IsOver end) {
  Lendable* run = top_.exchange(nullptr, std::memory_order_acquire);
  while (run != nullptr) {
    Lendable* const next = run->next_;
    end(*run);
    release(*run);
    run = next;
  }
}

}  // namespace tessera::host
