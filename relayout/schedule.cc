// SPDX-License-Identifier: Apache-2.0
//
// Costs of batches, and the dynamic programme over sets of components.
#include "relayout/schedule.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "base/check.h"

namespace tessera::internal {
namespace {

// Sums in another order differ in the last digits. A schedule that is not cheaper by more than this
// counts as equal, and the schedule with fewer batches is chosen.
constexpr double kEqualCost = 1e-9;

bool clearly_less(double a, double b) { return a < b * (1 - kEqualCost); }

const LinkCost& cost_of(const LinkCosts& costs, int link) {
  return link == 0 ? costs.process : link == 1 ? costs.host : costs.network;
}

}  // namespace

double seconds_of(const Traffic& traffic, const LinkCosts& costs) {
  double seconds = 0;
  int farthest = -1;
  for (int link = 0; link < kNumLinkClasses; ++link) {
    if (traffic.bytes[link] == 0) continue;
    farthest = link;
    seconds += static_cast<double>(traffic.bytes[link]) * cost_of(costs, link).seconds_per_byte;
  }
  return farthest < 0 ? 0 : seconds + cost_of(costs, farthest).latency_s;
}

void Scheduler::Effect::join(const Effect& other) {
  grows *= other.grows;
  shrinks *= other.shrinks;
  for (int reach = 0; reach < kNumReaches; ++reach) {
    kept_divisor[reach] = joint_divisor(kept_divisor[reach], other.kept_divisor[reach]);
  }
}

Scheduler::Scheduler(const std::vector<Component>& components, Sizes sizes, const LinkCosts& costs)
    : sizes_(sizes), costs_(costs) {
  for (const Component& component : components) {
    Effect& effect = components_.emplace_back();
    effect.grows = component.grows;
    effect.shrinks = component.shrinks;
    std::copy_n(component.kept_divisor, kNumReaches, effect.kept_divisor);
  }
  make_groups();
}

// One group per component, or kMaxGroups groups of components that are alike: sorted by reach,
// growth and kept share, so that fusing neighbours costs the schedule least.
void Scheduler::make_groups() {
  const size_t count = components_.size();
  TESSERA_CHECK(count < 64, "a mesh has at most 2^31 devices, so at most 31 digits move");
  if (count <= kMaxGroups) {
    for (size_t i = 0; i < count; ++i) groups_.push_back(Batch{1} << i);
    return;
  }
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](size_t i) {
    const Effect& effect = components_[i];
    const double growth = static_cast<double>(effect.grows) / static_cast<double>(effect.shrinks);
    return std::make_tuple(reach_of(effect), growth, effect.kept_divisor[0]);
  };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key(a) < key(b); });
  groups_.assign(kMaxGroups, 0);
  for (size_t i = 0; i < count; ++i) {
    groups_[i * kMaxGroups / count] |= Batch{1} << order[i];
  }
}

int Scheduler::reach_of(const Effect& effect) {
  int reach = kNumReaches;
  while (reach > 0 && effect.kept_divisor[reach - 1] == 1) --reach;
  return reach;
}

Scheduler::Effect Scheduler::effect_of(Batch batch) const {
  Effect effect;
  for (size_t i = 0; i < components_.size(); ++i) {
    if ((batch >> i & 1) != 0) effect.join(components_[i]);
  }
  return effect;
}

int64_t Scheduler::bytes_after(const Effect& done) const {
  return static_cast<int64_t>(static_cast<__int128>(sizes_.first_bytes) * done.grows /
                              done.shrinks);
}

// The reaches are nested: what is not on the device but in its process comes over a process link.
Traffic Scheduler::traffic(const Effect& batch, int64_t out_bytes) {
  const auto kept = [&](int reach) {
    if (reach == kNumReaches) return out_bytes;
    return batch.kept_divisor[reach] == 0 ? 0 : out_bytes / batch.kept_divisor[reach];
  };
  Traffic result;
  for (int link = 0; link < kNumLinkClasses; ++link) {
    result.bytes[link] = kept(link + 1) - kept(link);
  }
  return result;
}

// The time of a batch for each byte of its result: the inner loop of cheapest() has one product.
LinkCost Scheduler::rate_of(const Effect& batch) const {
  const auto kept = [&](int reach) {
    if (reach == kNumReaches) return 1.0;
    return batch.kept_divisor[reach] == 0 ? 0
                                          : 1.0 / static_cast<double>(batch.kept_divisor[reach]);
  };
  LinkCost rate{0, 0};
  for (int link = 0; link < kNumLinkClasses; ++link) {
    const double share = kept(link + 1) - kept(link);
    if (share == 0) continue;
    rate.latency_s = cost_of(costs_, link).latency_s;
    rate.seconds_per_byte += share * cost_of(costs_, link).seconds_per_byte;
  }
  return rate;
}

Schedule Scheduler::evaluate(const std::vector<Batch>& batches) const {
  Schedule schedule;
  schedule.batches = batches;
  schedule.peak_bytes = sizes_.first_bytes + sizes_.beside_bytes;
  Batch done = 0;
  int64_t held = sizes_.first_bytes;
  for (size_t i = 0; i < batches.size(); ++i) {
    done |= batches[i];
    const int64_t next = bytes_after(effect_of(done));
    const Traffic received = traffic(effect_of(batches[i]), next);
    schedule.seconds += seconds_of(received, costs_);
    schedule.received_bytes += received.total();
    // The source of the first batch is kept to the end.
    const int64_t source = i == 0 ? 0 : sizes_.first_bytes;
    const int64_t beside = sizes_.beside_bytes > 0 ? sizes_.beside_bytes : source;
    schedule.peak_bytes = std::max(schedule.peak_bytes, beside + held + next);
    held = next;
  }
  return schedule;
}

Schedule Scheduler::direct() const {
  Batch all = 0;
  for (Batch group : groups_) all |= group;
  if (all == 0) return evaluate({});
  return evaluate({all});
}

Traffic Scheduler::direct_traffic() const {
  const Effect all = effect_of((Batch{1} << components_.size()) - 1);
  return traffic(all, bytes_after(all));
}

// A dynamic programme over sets of groups. best[done] is the cheapest schedule that has moved
// exactly the groups in `done`: the cheapest of best[done - last] and then the batch `last`, over
// all non-empty subsets `last` of `done` whose batch keeps the cap. This is exact because the cost
// of a batch depends on the set moved before it alone, not on its order.
std::optional<Schedule> Scheduler::cheapest(std::optional<int64_t> memory_cap_bytes) const {
  const size_t num_sets = size_t{1} << groups_.size();
  std::vector<Batch> members(num_sets, 0);
  std::vector<LinkCost> rates(num_sets);
  std::vector<int64_t> bytes(num_sets);
  for (size_t set = 0; set < num_sets; ++set) {
    for (size_t i = 0; i < groups_.size(); ++i) {
      if ((set >> i & 1) != 0) members[set] |= groups_[i];
    }
    const Effect effect = effect_of(members[set]);
    bytes[set] = bytes_after(effect);
    rates[set] = rate_of(effect);
  }
  struct Best {
    double seconds = std::numeric_limits<double>::infinity();
    size_t last = 0;  // The set that moved last.
    int batches = 0;
  };
  std::vector<Best> best(num_sets);
  best[0] = {0, 0, 0};
  for (size_t done = 1; done < num_sets; ++done) {
    // All subsets, the largest first: among equal schedules the one with fewer batches is found
    // first.
    for (size_t last = done; last != 0; last = (last - 1) & done) {
      const size_t before = done ^ last;
      const int64_t source = before == 0 ? 0 : sizes_.first_bytes;
      const int64_t beside = sizes_.beside_bytes > 0 ? sizes_.beside_bytes : source;
      if (memory_cap_bytes.has_value() &&
          beside + bytes[before] + bytes[done] > *memory_cap_bytes) {
        continue;
      }
      const double seconds = best[before].seconds + rates[last].latency_s +
                             rates[last].seconds_per_byte * static_cast<double>(bytes[done]);
      const int batches = best[before].batches + 1;
      const bool fewer = batches < best[done].batches && !clearly_less(best[done].seconds, seconds);
      if (clearly_less(seconds, best[done].seconds) || fewer) {
        best[done] = {seconds, last, batches};
      }
    }
  }
  if (best.back().seconds == std::numeric_limits<double>::infinity()) return std::nullopt;
  std::vector<Batch> batches;
  for (size_t set = num_sets - 1; set != 0; set ^= best[set].last) {
    batches.push_back(members[best[set].last]);
  }
  std::reverse(batches.begin(), batches.end());
  return evaluate(batches);
}

std::vector<Batch> Scheduler::batches_by_reach() const {
  std::vector<Batch> batches(kNumReaches + 1, 0);
  for (size_t i = 0; i < components_.size(); ++i) {
    batches[reach_of(components_[i])] |= Batch{1} << i;
  }
  batches.erase(std::remove(batches.begin(), batches.end(), Batch{0}), batches.end());
  return batches;
}

Schedule Scheduler::near_links_first() const { return evaluate(batches_by_reach()); }

Schedule Scheduler::far_links_first() const {
  std::vector<Batch> batches = batches_by_reach();
  std::reverse(batches.begin(), batches.end());
  return evaluate(batches);
}

}  // namespace tessera::internal
