// SPDX-License-Identifier: Apache-2.0
//
// RandomRelayouts: relayouts on meshes far larger than any that could be run.
//
//   meshes    1 to 6 axes, up to 65,536 devices, sizes with the primes 2, 3, 5 and 7
//   layouts   ranks 0 to 6, whole axes and sub-axes, a third of them partial
//   pairs     on one mesh, on two meshes over the same devices, on device sets that overlap, and
//             on devices in another order
//   shapes    even, uneven, dims of no and one element
//
// The sequence of relayouts is a function of the seed.
#ifndef TESSERA_RELAYOUT_TESTING_RANDOM_RELAYOUTS_H_
#define TESSERA_RELAYOUT_TESTING_RANDOM_RELAYOUTS_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "base/shape.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "relayout/plan.h"
#include "relayout/testing/small_relayouts.h"

namespace tessera::testing {

inline constexpr int64_t kMaxDevicesOfRandomRelayouts = 65536;
inline constexpr int kMaxRankOfRandomRelayouts = 6;

class RandomRelayouts {
 public:
  explicit RandomRelayouts(uint64_t seed) : random_(seed) {}

  RelayoutCase next();

 private:
  int64_t below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random_); }
  bool one_in(int n) { return below(n) == 0; }

  std::vector<MeshAxis> axes();
  std::vector<MeshAxis> axes_over(int64_t num_devices);
  Mesh another_mesh(const Mesh& mesh);
  Layout layout(const Mesh& mesh, int rank);
  // The whole axis, or the parts that it is cut into.
  std::vector<std::string> parts_of(const MeshAxis& axis);
  Shape shape(const Layout& from, const Layout& to);

  std::mt19937_64 random_;
};

// Checks a plan by a few of its devices: the steps lead from the old layout to the new; the pulls
// of a move tile the new box, come from boxes that their sources hold, and add up to the bytes.
// Returns the first broken promise, or "". Takes O(devices) only where the plan does.
std::string check_plan(const RelayoutPlan& plan, const std::vector<int64_t>& positions);

}  // namespace tessera::testing

#endif  // TESSERA_RELAYOUT_TESTING_RANDOM_RELAYOUTS_H_
