// SPDX-License-Identifier: Apache-2.0
//
// SmallRelayouts: every relayout that is small enough to run them all, in a fixed order.
//
//   meshes    up to 3 axes (size 1 included) and 8 devices: 66 of them
//   layouts   every one, sub-axes included, without partial axes and with them for some ops
//   ranks     0 to 3
//   shapes    each dim as long as the mesh is large, so that all boxes are equal; and uneven, with
//             more shards than elements
//
// A relayout has a number, so that a run may take a share of them: numbers first, first + stride,
// ... Memory holds the layouts of one mesh and rank at a time.
#ifndef TESSERA_RELAYOUT_TESTING_SMALL_RELAYOUTS_H_
#define TESSERA_RELAYOUT_TESTING_SMALL_RELAYOUTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "layout/layout.h"
#include "mesh/mesh.h"

namespace tessera::testing {

struct RelayoutCase {
  Layout from;
  Layout to;
  Shape shape;

  // "[x, -] sum{y} to [y, x] on {x=2, y=2}, shape [4, 4]".
  std::string to_string() const;
};

// Every mesh of 1 to `max_axes` axes and at most `max_devices` devices, ids row-major.
std::vector<Mesh> small_meshes(int max_axes, int64_t max_devices);

// Every layout of that rank on the mesh, each once: each prime factor of each axis belongs to a dim
// (at any place), is partial under an op of `ops`, or is neither.
std::vector<Layout> every_layout(const Mesh& mesh, int rank, const std::vector<ReduceOp>& ops);

class SmallRelayouts {
 public:
  explicit SmallRelayouts(std::vector<ReduceOp> ops);

  // How many there are.
  int64_t size() const { return size_; }
  // Calls fn(number, relayout) for the numbers first, first + stride, ... below size(), until it
  // returns false.
  void for_each(int64_t first, int64_t stride,
                absl::FunctionRef<bool(int64_t number, const RelayoutCase&)> fn) const;

 private:
  // The relayouts of one mesh and rank: number = first + (shape * layouts + from) * layouts + to.
  struct Block {
    Mesh mesh;
    int rank;
    int64_t num_layouts;
    std::vector<Shape> shapes;
    int64_t first;
    int64_t size() const { return static_cast<int64_t>(shapes.size()) * num_layouts * num_layouts; }
  };

  std::vector<ReduceOp> ops_;
  std::vector<Block> blocks_;
  int64_t size_ = 0;
};

// Plans the relayout and the way back, and runs both on simulated devices. Returns the first broken
// promise, or "":
// - everything that check_relayout() checks: the dense value, pulls, groups, the lower bound, and
//   without partials the bytes of each device, which are the bytes that it lacks; reductions also
//   with devices far apart, and with hosts of two devices;
// - plan.peak_bytes() is the high-water mark of an allocator that keeps the source and, between two
//   steps, the tensors of the devices;
// - the way back restores the source: every element without partials, else the value.
std::string check_relayout_exhaustively(const RelayoutCase& relayout);

}  // namespace tessera::testing

#endif  // TESSERA_RELAYOUT_TESTING_SMALL_RELAYOUTS_H_
