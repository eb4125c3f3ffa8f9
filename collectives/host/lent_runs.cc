// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/lent_runs.h"

#include <utility>

#include "collectives/host/control.h"

namespace tessera::host {

void LentRuns::lend(std::shared_ptr<Lendable> run, uint32_t seq) {
  num_lent_.fetch_add(1, std::memory_order_relaxed);
  std::lock_guard<std::mutex> lock(mutex_);
  lent_.push_back({std::move(run), seq});
}

std::vector<LentRuns::Lent> LentRuns::take_all() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(lent_, {});
}

void LentRuns::release(Lent& lent) {
  lent.run.reset();
  num_lent_.fetch_sub(1, std::memory_order_release);
}

uint32_t LentRuns::reap(IsOver is_over) {
  uint32_t oldest = 0;
  std::vector<Lent> runs = take_all();
  std::erase_if(runs, [&](Lent& lent) {
    if (is_over(*lent.run)) {
      release(lent);
      return true;
    }
    if (oldest == 0 || is_later(oldest, lent.seq)) oldest = lent.seq;
    return false;
  });
  std::lock_guard<std::mutex> lock(mutex_);
  lent_.swap(runs);  // with the memory of the list, also where nothing is left on it
  for (Lent& lent : runs) lent_.push_back(std::move(lent));
  return oldest;
}

void LentRuns::clear(IsOver end) {
  for (Lent& lent : take_all()) {
    end(*lent.run);
    release(lent);
  }
}

}  // namespace tessera::host
