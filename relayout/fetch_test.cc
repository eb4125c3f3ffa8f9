// SPDX-License-Identifier: Apache-2.0
//
// Fetch against an oracle that goes through single elements: every layout of small meshes, random
// boxes, also boxes that begin before the tensor and end behind it.
#include "relayout/fetch.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "relayout/testing/small_relayouts.h"
#include "relayout/topology.h"
#include "tests/support/seed.h"

namespace tessera {
namespace {

using Index = std::vector<int64_t>;

// Calls fn for each index of a box.
template <class Fn>
void for_each_index(const Box& box, Fn fn) {
  if (box.is_empty()) return;
  Index index = box.offsets;
  for (;;) {
    fn(index);
    size_t dim = index.size();
    for (; dim > 0; --dim) {
      if (++index[dim - 1] < box.offsets[dim - 1] + box.sizes[dim - 1]) break;
      index[dim - 1] = box.offsets[dim - 1];
    }
    if (dim == 0) return;
  }
}

bool is_in(const Box& box, const Index& index) {
  for (size_t dim = 0; dim < index.size(); ++dim) {
    const int64_t at = index[dim] - box.offsets[dim];
    if (at < 0 || at >= box.sizes[dim]) return false;
  }
  return true;
}

Index wrapped(Index index, const Shape& shape) {
  for (size_t dim = 0; dim < index.size(); ++dim) {
    index[dim] = (index[dim] % shape[dim] + shape[dim]) % shape[dim];
  }
  return index;
}

// The first mistake of the device at the position, or "".
std::string check_position(const Fetch& fetch, const Box& needed, int64_t position) {
  const Mesh& mesh = fetch.from().mesh();
  const Box own = fetch.from().box(fetch.shape(), position);
  bool has_all = true;
  for_each_index(needed, [&](const Index& index) { has_all = has_all && is_in(own, index); });
  const std::vector<Pull> pulls = fetch.pulls(position);
  if (has_all) {
    if (!pulls.empty() || fetch.pulls_any(position)) return "pulls what it has";
    if (!(fetch.box(position) == own)) return "does not compute from what it holds";
    return fetch.received_bytes(position) == 0 ? "" : "receives what it has";
  }
  if (!fetch.pulls_any(position) || !(fetch.box(position) == needed))
    return "has not what it needs";
  std::map<Index, int> times;
  int64_t received = 0;
  for (const Pull& pull : pulls) {
    const int64_t source = *mesh.position_of_device(pull.source_device);
    const Box held = fetch.from().box(fetch.shape(), source);
    if (pull.source_box.sizes != held.sizes) return "a source holds something else";
    if (fetch.from().partial_index(source) != fetch.from().partial_index(position)) {
      return "the term of another device";
    }
    if (!contains(pull.source_box, pull.box)) return "a pull is not in its source";
    bool is_same = true;
    for_each_index(pull.box, [&](const Index& index) {
      ++times[index];
      received += source == position ? 0 : dtype_size(fetch.dtype());
      // The same element, in the indices of the tensor.
      Index in_tensor = index;
      for (size_t dim = 0; dim < index.size(); ++dim) {
        in_tensor[dim] += held.offsets[dim] - pull.source_box.offsets[dim];
      }
      is_same = is_same && in_tensor == wrapped(index, fetch.shape());
    });
    if (!is_same) return "another element";
  }
  bool has_each_once = true;
  for_each_index(needed,
                 [&](const Index& index) { has_each_once = has_each_once && times[index] == 1; });
  if (!has_each_once || static_cast<int64_t>(times.size()) != needed.num_elements()) {
    return "does not pull each element once";
  }
  return fetch.received_bytes(position) == received ? "" : "receives other bytes";
}

TEST(FetchTest, EveryLayoutOfSmallMeshes) {
  std::mt19937_64 random(testing::test_seed());
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  int num_fetches = 0;
  for (const Mesh& mesh : testing::small_meshes(2, 6)) {
    for (int rank = 1; rank <= 2; ++rank) {
      const std::vector<Layout> layouts = testing::every_layout(mesh, rank, {ReduceOp::kSum});
      for (size_t k = 0; k < 5 * layouts.size(); ++k) {
        const Layout& layout = layouts[k / 5];
        Shape shape;
        for (int dim = 0; dim < rank; ++dim) shape.push_back(1 + below(7));
        std::vector<Box> boxes(mesh.size());
        for (Box& box : boxes) {
          for (const int64_t size : shape) {
            box.offsets.push_back(below(3) == 0 ? below(3 * size) - size : below(size));
            box.sizes.push_back(below(4) == 0 ? below(2 * size) : below(size));
          }
        }
        const Fetch fetch(
            layout, shape, DType::kFloat32, [&](int64_t position) { return boxes[position]; },
            Topology(), "");
        int64_t most = 0;
        bool is_idle = true;
        for (int64_t position = 0; position < mesh.size(); ++position) {
          ASSERT_EQ(check_position(fetch, boxes[position], position), "")
              << "position " << position << " of " << layout << ", shape " << shape_to_string(shape)
              << ", needs " << boxes[position].to_string();
          most = std::max(most, fetch.received_bytes(position));
          is_idle = is_idle && !fetch.pulls_any(position);
        }
        EXPECT_EQ(fetch.max_received_bytes(), most);
        EXPECT_EQ(fetch.is_idle(), is_idle);
        ++num_fetches;
      }
    }
  }
  EXPECT_GT(num_fetches, 1500);
}

// The device that receives most decides: 4 elements of 4 bytes over the links of one host.
TEST(FetchTest, PredictedTime) {
  const Layout layout = *Layout::parse(*Mesh::parse("{x=4}"), "[x]");
  const auto needs = [](int64_t position) {
    return position == 3 ? Box{{0}, {6}} : Box{{2 * position}, {2}};
  };
  const Fetch fetch(layout, {8}, DType::kFloat32, needs, Topology(), "");
  EXPECT_EQ(fetch.max_received_bytes(), 24);
  const LinkCost host = Topology().cost(LinkClass::kHost);
  EXPECT_EQ(fetch.predicted_time(), absl::Seconds(host.latency_s + 24 * host.seconds_per_byte));
  // As above, where the topology has several devices in a process.
  const Fetch blocks(layout, {8}, DType::kFloat32, needs, *Topology::uniform(2, 4), "");
  const LinkCost process = Topology().cost(LinkClass::kProcess);
  EXPECT_EQ(blocks.predicted_time(), absl::Seconds(host.latency_s + 16 * host.seconds_per_byte +
                                                   8 * process.seconds_per_byte));
}

TEST(FetchTest, NothingNeededTakesNoTime) {
  const Layout layout = *Layout::parse(*Mesh::parse("{x=4}"), "[x]");
  const Fetch fetch(
      layout, {0}, DType::kFloat32,
      [](int64_t) {
        return Box{{0}, {0}};
      },
      Topology(), "");
  EXPECT_TRUE(fetch.is_idle());
  EXPECT_EQ(fetch.max_received_bytes(), 0);
  EXPECT_EQ(fetch.predicted_time(), absl::ZeroDuration());
}

}  // namespace
}  // namespace tessera
