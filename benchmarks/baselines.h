// SPDX-License-Identifier: Apache-2.0
//
// The planner that ours is measured against. It relays out one tensor by a sequence of layouts,
// each made from the layout before it by one collective.
//
//   [x, y] to [y, x] on {x=4, y=2}
//     gather_then_slice   [x, y] -> [-, -] -> [y, x]
#ifndef TESSERA_BENCHMARKS_BASELINES_H_
#define TESSERA_BENCHMARKS_BASELINES_H_

#include <cstdint>
#include <vector>

#include "base/shape.h"
#include "base/status.h"
#include "layout/layout.h"

namespace tessera::benchmarks {

// From the old layout to the new, both included.
using Sequence = std::vector<Layout>;

// The cost of a sequence on a flat network.
struct Cost {
  int64_t received_elements = 0;  // sum over the steps of the most that a device receives
  int num_collectives = 0;        // steps in which a device receives anything
};
Cost cost_of(const Sequence& sequence, const Shape& shape);

// The links of a flat network.
struct Link {
  double alpha_us = 12;           // to begin a step
  double bytes_per_us = 300'000;  // of one device, in each direction
};
double time_us(const Cost& cost, int64_t element_bytes, const Link& link);

// Gathers the axes that the new layout does not begin with, and slices the rest. XLA does this as a
// last resort ("involuntary full rematerialization"); here the major axes that both layouts share
// are kept. Requires layouts without partial axes.
StatusOr<Sequence> gather_then_slice(const Layout& from, const Layout& to);

}  // namespace tessera::benchmarks

#endif  // TESSERA_BENCHMARKS_BASELINES_H_
