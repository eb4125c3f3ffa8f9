// SPDX-License-Identifier: Apache-2.0
//
// Schedule: in which ordered batches the components of a relayout move. Internal to relayout/.
//
//   [(node,g1,g2)] -> [-] of 16 MiB on 2 nodes of 4 GPUs, components node, g1, g2
//
//     {node,g1,g2}          one batch: each device gets 8 MiB over the network     219 us
//     {node}, {g1,g2}       2 MiB over the network, then 12 MiB on the node        126 us
//
// A batch T after the components `done` takes, by the alpha-beta model,
//
//   latency(farthest link of T) + sum over link classes of bytes(class) * seconds_per_byte(class)
//
// where bytes(class) counts the bytes that the worst placed device receives from its nearest
// holders over links of that class. Local copies cost nothing.
//
// The claim: the least such time over all schedules that move the components in ordered batches,
// each by one direct exchange, and keep their peak within the cap. Where all links are of one class
// one batch is best: it has the least latency, and no sequence receives fewer bytes than it. No
// claim is made about schedules that split a component or route through a third device.
#ifndef TESSERA_RELAYOUT_SCHEDULE_H_
#define TESSERA_RELAYOUT_SCHEDULE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "relayout/factored_view.h"
#include "relayout/topology.h"

namespace tessera::internal {

// Bit i stands for component i.
using Batch = uint64_t;

// The bytes that the worst placed device receives in a batch, by link class.
struct Traffic {
  int64_t bytes[kNumLinkClasses] = {0, 0, 0};

  int64_t total() const { return bytes[0] + bytes[1] + bytes[2]; }
};
// Zero bytes take no time.
double seconds_of(const Traffic& traffic, const LinkCosts& costs);

struct Schedule {
  std::vector<Batch> batches;  // Disjoint, and together all components.
  double seconds = 0;
  int64_t received_bytes = 0;
  int64_t peak_bytes = 0;
};

class Scheduler {
 public:
  // Where there are more components they are fused into this many groups; components with like
  // links and growth share a group. 3^m - 2^m transitions: 58,025 for 10.
  static constexpr int kMaxGroups = 10;

  struct Sizes {
    int64_t first_bytes;   // A device's bytes before the first batch.
    int64_t beside_bytes;  // a device's other bytes, all the time: the source, if another tensor
  };
  // Requires sizes that every component's growth divides.
  Scheduler(const std::vector<Component>& components, Sizes sizes, const LinkCosts& costs);

  int num_groups() const { return static_cast<int>(groups_.size()); }
  // Requires batches that are disjoint, not empty, and together all components.
  Schedule evaluate(const std::vector<Batch>& batches) const;
  Schedule direct() const;
  Traffic direct_traffic() const;
  // The cheapest schedule whose peak is at most the cap, if there is one; among equally cheap
  // schedules one with the fewest batches. O(3^min(components, kMaxGroups)).
  std::optional<Schedule> cheapest(std::optional<int64_t> memory_cap_bytes) const;
  // A batch for each reach at which components differ, the farthest links first; and the reverse.
  Schedule far_links_first() const;
  Schedule near_links_first() const;

 private:
  // The joint effect of a set of components.
  struct Effect {
    int64_t grows = 1;
    int64_t shrinks = 1;
    int64_t kept_divisor[kNumReaches] = {1, 1, 1};

    void join(const Effect& other);
  };
  // The link class of the farthest bytes of a component, 0 for none.
  static int reach_of(const Effect& effect);
  Effect effect_of(Batch batch) const;
  int64_t bytes_after(const Effect& done) const;
  static Traffic traffic(const Effect& batch, int64_t out_bytes);
  LinkCost rate_of(const Effect& batch) const;
  void make_groups();
  std::vector<Batch> batches_by_reach() const;

  std::vector<Effect> components_;
  std::vector<Batch> groups_;
  Sizes sizes_;
  LinkCosts costs_;
};

}  // namespace tessera::internal

#endif  // TESSERA_RELAYOUT_SCHEDULE_H_
