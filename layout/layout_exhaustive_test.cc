// SPDX-License-Identifier: Apache-2.0
//
// Every layout of rank 0 to 3 on every mesh of up to 3 axes and 8 devices, dims of 0 to 9 elements,
// every element of every box, against an oracle that deals elements one by one.
//
// Layouts are made by cutting each axis into digits in every way (6 = 6, 2*3, 3*2) and giving each
// digit a place: a spot in the ordered list of a dim, replicated, or partial.
//
//   digits of {x=4}: x | x:(1)2, x:(2)2     places: [x] [(x:(2)2,x:(1)2)] [x:(1)2] sum{x:(2)2} ...
//
// The oracle counts: coordinates and digits are odometers that advance by one per device, and
// element i of a dim of n over N shards goes to shard floor(i * N / n). It shares no
// code with Layout, which divides positions and intersects intervals.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/reduce_op.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitizers.h"

namespace tessera {
namespace {

using testing::kSanitized;

// Fewer meshes, and fewer sizes for rank 3.
constexpr int kMaxDevices = kSanitized ? 4 : 8;
constexpr int kMaxSize = 9;

std::vector<int> dim_sizes(int rank) {
  if (kSanitized && rank == 3) return {0, 1, 3, 8};
  return {0, 1, 2, 3, 4, 5, 6, 7, 8, kMaxSize};
}

struct OracleDigit {
  int axis;
  int pre;
  int size;
};

// A layout as the generator writes it: not yet in normal form.
struct Arrangement {
  std::vector<std::vector<OracleDigit>> dims;
  std::vector<OracleDigit> partial;  // Major to minor, in mesh order.
};

std::string axis_name(int axis) { return std::string(1, static_cast<char>('x' + axis)); }

// Turns an odometer with these wheels once; the last wheel is the fastest.
void turn(const std::vector<int>& wheels, std::vector<int>& reading) {
  for (size_t i = wheels.size(); i-- > 0;) {
    if (++reading[i] < wheels[i]) return;
    reading[i] = 0;
  }
}

class OracleMesh {
 public:
  explicit OracleMesh(std::vector<int> sizes) : sizes_(std::move(sizes)) {
    int devices = 1;
    for (int size : sizes_) devices *= size;
    std::vector<int> reading(sizes_.size(), 0);
    for (int device = 0; device < devices; ++device) {
      coordinates_.push_back(reading);
      turn(sizes_, reading);
    }
  }

  int num_devices() const { return static_cast<int>(coordinates_.size()); }
  const std::vector<int>& sizes() const { return sizes_; }

  StatusOr<Mesh> make() const {
    std::vector<MeshAxis> axes;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      axes.push_back({axis_name(static_cast<int>(i)), sizes_[i]});
    }
    return Mesh::create(std::move(axes));
  }

  // The number that the digits show on a device, major to minor.
  int read(const std::vector<OracleDigit>& digits, int device) const {
    int number = 0;
    for (const OracleDigit& digit : digits) {
      const int n = sizes_[digit.axis];
      const std::vector<int> wheels = {digit.pre, digit.size, n / (digit.pre * digit.size)};
      std::vector<int> reading = {0, 0, 0};
      for (int c = 0; c < coordinates_[device][digit.axis]; ++c) turn(wheels, reading);
      number = number * digit.size + reading[1];
    }
    return number;
  }

 private:
  std::vector<int> sizes_;
  std::vector<std::vector<int>> coordinates_;
};

int count_of(const std::vector<OracleDigit>& digits) {
  int count = 1;
  for (const OracleDigit& digit : digits) count *= digit.size;
  return count;
}

void append_meshes(std::vector<int> sizes, int product, int max_devices,
                   std::vector<OracleMesh>& meshes) {
  if (!sizes.empty()) meshes.emplace_back(sizes);
  if (sizes.size() == 3) return;
  for (int size = 1; product * size <= max_devices; ++size) {
    sizes.push_back(size);
    append_meshes(sizes, product * size, max_devices, meshes);
    sizes.pop_back();
  }
}

std::vector<OracleMesh> all_meshes(int max_devices) {
  std::vector<OracleMesh> meshes;
  append_meshes({}, 1, max_devices, meshes);
  return meshes;
}

// Every way to cut an axis into digits, major to minor. An axis of size 1 is one digit of size 1,
// so that layouts name it too.
void append_cuts(int axis, int n, int pre, std::vector<OracleDigit> digits,
                 std::vector<std::vector<OracleDigit>>& cuts) {
  if (pre == n && (n > 1 || !digits.empty())) {
    cuts.push_back(digits);
    return;
  }
  if (n == 1) {
    cuts.push_back({{axis, 1, 1}});
    return;
  }
  for (int size = 2; pre * size <= n; ++size) {
    if (n % (pre * size) != 0) continue;
    digits.push_back({axis, pre, size});
    append_cuts(axis, n, pre * size, digits, cuts);
    digits.pop_back();
  }
}

// Gives the digits from `next` on every place.
void append_places(const std::vector<OracleDigit>& digits, size_t next, Arrangement& arrangement,
                   std::vector<Arrangement>& arrangements) {
  if (next == digits.size()) {
    arrangements.push_back(arrangement);
    return;
  }
  append_places(digits, next + 1, arrangement, arrangements);  // Replicated.
  arrangement.partial.push_back(digits[next]);
  append_places(digits, next + 1, arrangement, arrangements);
  arrangement.partial.pop_back();
  for (size_t dim = 0; dim < arrangement.dims.size(); ++dim) {
    for (size_t spot = 0; spot <= arrangement.dims[dim].size(); ++spot) {
      arrangement.dims[dim].insert(arrangement.dims[dim].begin() + spot, digits[next]);
      append_places(digits, next + 1, arrangement, arrangements);
      arrangement.dims[dim].erase(arrangement.dims[dim].begin() + spot);
    }
  }
}

std::vector<Arrangement> all_arrangements(const OracleMesh& mesh, int rank) {
  std::vector<std::vector<OracleDigit>> cuts_of_mesh = {{}};
  for (size_t axis = 0; axis < mesh.sizes().size(); ++axis) {
    std::vector<std::vector<OracleDigit>> cuts;
    append_cuts(static_cast<int>(axis), mesh.sizes()[axis], 1, {}, cuts);
    std::vector<std::vector<OracleDigit>> longer;
    for (const auto& before : cuts_of_mesh) {
      for (const auto& cut : cuts) {
        longer.push_back(before);
        longer.back().insert(longer.back().end(), cut.begin(), cut.end());
      }
    }
    cuts_of_mesh = std::move(longer);
  }
  std::vector<Arrangement> arrangements;
  for (const auto& digits : cuts_of_mesh) {
    Arrangement arrangement;
    arrangement.dims.resize(rank);
    append_places(digits, 0, arrangement, arrangements);
  }
  return arrangements;
}

std::vector<std::string> tokens(const std::vector<OracleDigit>& digits) {
  std::vector<std::string> result;
  for (const OracleDigit& digit : digits) {
    result.push_back(absl::StrCat(axis_name(digit.axis), ":(", digit.pre, ")", digit.size));
  }
  return result;
}

StatusOr<Layout> make_layout(const Mesh& mesh, const Arrangement& arrangement, ReduceOp op) {
  std::vector<DimSharding> dims;
  for (const auto& digits : arrangement.dims) dims.push_back(tokens(digits));
  TESSERA_ASSIGN_OR_RETURN(Layout layout, Layout::create(mesh, std::move(dims)));
  if (arrangement.partial.empty()) return layout;
  return layout.with_partial(tokens(arrangement.partial), op);
}

// Element i is bit i: what `shard` of `num_shards` gets when a dim of `n` is dealt one by one.
uint32_t dealt(int n, int num_shards, int shard) {
  uint32_t elements = 0;
  for (int i = 0; i < n; ++i) {
    if (i * num_shards / n == shard) elements |= 1u << i;
  }
  return elements;
}

// The intervals of every device, by dim and size of the dim.
class Oracle {
 public:
  Oracle(const OracleMesh& mesh, const Arrangement& arrangement) {
    const int rank = static_cast<int>(arrangement.dims.size());
    shards_.resize(mesh.num_devices());
    elements_.resize(mesh.num_devices());
    for (int device = 0; device < mesh.num_devices(); ++device) {
      for (int dim = 0; dim < rank; ++dim) {
        const auto& digits = arrangement.dims[dim];
        shards_[device].push_back(mesh.read(digits, device));
        std::vector<uint32_t>& by_size = elements_[device].emplace_back();
        for (int n = 0; n <= kMaxSize; ++n) {
          by_size.push_back(dealt(n, count_of(digits), shards_[device][dim]));
        }
      }
      terms_.push_back(mesh.read(arrangement.partial, device));
    }
  }

  int shard(int device, int dim) const { return shards_[device][dim]; }
  int term(int device) const { return terms_[device]; }
  uint32_t elements(int device, int dim, int n) const { return elements_[device][dim][n]; }

 private:
  std::vector<std::vector<int>> shards_;
  std::vector<std::vector<std::vector<uint32_t>>> elements_;
  std::vector<int> terms_;
};

// The elements of one dim of a box, as bits.
uint32_t interval_bits(int64_t offset, int64_t size) {
  uint32_t bits = 0;
  for (int64_t i = offset; i < offset + size; ++i) bits |= 1u << i;
  return bits;
}

// How many elements of `shape` the box and the oracle disagree on. A shape of rank below 3 is one
// of rank 3 with leading dims of one element, which every device holds; the elements of a row of
// the last dim are compared at once, as bits.
int64_t count_differences(const Oracle& oracle, int device, const Shape& shape, const Box& box) {
  int sizes[3] = {1, 1, 1};
  uint32_t expected[3] = {1, 1, 1}, actual[3] = {1, 1, 1};
  const int rank = static_cast<int>(shape.size());
  for (int dim = 0; dim < rank; ++dim) {
    const int slot = 3 - rank + dim;
    sizes[slot] = static_cast<int>(shape[dim]);
    expected[slot] = oracle.elements(device, dim, sizes[slot]);
    actual[slot] = interval_bits(box.offsets[dim], box.sizes[dim]);
    // A box that leaves the shape would not show in the rows below.
    if (actual[slot] >> sizes[slot] != 0) return 1;
  }
  int64_t differences = 0;
  for (int i = 0; i < sizes[0]; ++i) {
    for (int j = 0; j < sizes[1]; ++j) {
      const bool is_expected = (expected[0] >> i & 1) != 0 && (expected[1] >> j & 1) != 0;
      const bool is_actual = (actual[0] >> i & 1) != 0 && (actual[1] >> j & 1) != 0;
      const uint32_t row = (is_expected ? expected[2] : 0) ^ (is_actual ? actual[2] : 0);
      differences += __builtin_popcount(row);
    }
  }
  return differences;
}

// Calls visit(shape) for every shape of `rank`.
template <class Visit>
void for_each_shape(int rank, Shape& shape, const Visit& visit) {
  if (static_cast<int>(shape.size()) == rank) return visit(shape);
  for (int n : dim_sizes(rank)) {
    shape.push_back(n);
    for_each_shape(rank, shape, visit);
    shape.pop_back();
  }
}

int64_t power(int64_t base, int exponent) {
  return exponent == 0 ? 1 : base * power(base, exponent - 1);
}

class LayoutExhaustiveTest : public ::testing::TestWithParam<int> {};

TEST_P(LayoutExhaustiveTest, EveryElementOfEveryBoxIsWhereTheOracleDealsIt) {
  const int rank = GetParam();
  int64_t elements_of_a_device = 0;
  for (int n : dim_sizes(rank)) elements_of_a_device += n;
  elements_of_a_device = power(elements_of_a_device, rank);

  int64_t num_layouts = 0, checked = 0, expected_checked = 0;
  for (const OracleMesh& oracle_mesh : all_meshes(kMaxDevices)) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, oracle_mesh.make());
    // Boxes do not depend on the form that a layout is written in beyond its digits, so that two
    // arrangements with one normal form are checked by their digits, and their boxes once.
    std::set<std::string> seen;
    for (const Arrangement& arrangement : all_arrangements(oracle_mesh, rank)) {
      TESSERA_ASSERT_OK_AND_ASSIGN(const Layout layout,
                                   make_layout(mesh, arrangement, ReduceOp::kSum));
      const Oracle oracle(oracle_mesh, arrangement);
      for (int device = 0; device < oracle_mesh.num_devices(); ++device) {
        for (int dim = 0; dim < rank; ++dim) {
          ASSERT_EQ(layout.shard_index(dim, device), oracle.shard(device, dim)) << layout;
        }
        ASSERT_EQ(layout.partial_index(device), oracle.term(device)) << layout;
      }
      for (int dim = 0; dim < rank; ++dim) {
        ASSERT_EQ(layout.num_shards(dim), count_of(arrangement.dims[dim])) << layout;
      }
      ASSERT_EQ(layout.num_partial_terms(), count_of(arrangement.partial)) << layout;
      if (!seen.insert(layout.to_string()).second) continue;

      ++num_layouts;
      expected_checked += oracle_mesh.num_devices() * elements_of_a_device;
      Shape shape;
      for_each_shape(rank, shape, [&](const Shape& shape) {
        for (int device = 0; device < oracle_mesh.num_devices(); ++device) {
          const Box box = layout.box(shape, device);
          ASSERT_EQ(count_differences(oracle, device, shape, box), 0)
              << layout << " of " << shape_to_string(shape) << " on device " << device << " holds "
              << box.to_string();
          checked += num_elements(shape);
        }
      });
      if (HasFatalFailure()) return;
    }
  }
  // The loops did run, over all there is.
  EXPECT_EQ(checked, expected_checked);
  EXPECT_GT(num_layouts, power(kSanitized ? 5 : 10, rank));
  RecordProperty("layouts", std::to_string(num_layouts));
  RecordProperty("elements", std::to_string(checked));
}

TEST_P(LayoutExhaustiveTest, EveryLayoutHasOneNormalFormThatParsesBack) {
  const int rank = GetParam();
  int64_t checked = 0;
  for (const OracleMesh& oracle_mesh : all_meshes(kMaxDevices)) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, oracle_mesh.make());
    // Which shard and term every device holds, and of how many: the meaning of a layout.
    std::map<std::vector<int64_t>, std::string> text_of_meaning;
    std::set<std::string> texts;
    for (const Arrangement& arrangement : all_arrangements(oracle_mesh, rank)) {
      const Oracle oracle(oracle_mesh, arrangement);
      std::vector<int64_t> meaning = {count_of(arrangement.partial)};
      for (const auto& digits : arrangement.dims) meaning.push_back(count_of(digits));
      for (int device = 0; device < oracle_mesh.num_devices(); ++device) {
        for (int dim = 0; dim < rank; ++dim) meaning.push_back(oracle.shard(device, dim));
        meaning.push_back(oracle.term(device));
      }
      const int num_ops = arrangement.partial.empty() ? 1 : kNumReduceOps;
      for (int op = 0; op < num_ops; ++op) {
        TESSERA_ASSERT_OK_AND_ASSIGN(const Layout layout,
                                     make_layout(mesh, arrangement, static_cast<ReduceOp>(op)));
        ASSERT_EQ(layout.is_partial(), count_of(arrangement.partial) > 1) << layout;
        TESSERA_ASSERT_OK_AND_ASSIGN(const Layout again, Layout::parse(mesh, layout.to_string()));
        ASSERT_EQ(again, layout);
        ASSERT_EQ(again.to_string(), layout.to_string());
        TESSERA_ASSERT_OK_AND_ASSIGN(const Layout with_mesh,
                                     Layout::parse(mesh, layout.to_string_with_mesh()));
        ASSERT_EQ(with_mesh, layout);
        ++checked;
        if (op == 0) {
          const auto [entry, is_new] = text_of_meaning.emplace(meaning, layout.to_string());
          ASSERT_EQ(entry->second, layout.to_string()) << "one meaning, two normal forms";
          ASSERT_EQ(texts.insert(layout.to_string()).second, is_new)
              << "one normal form, two meanings: " << layout;
        }
      }
    }
  }
  EXPECT_GT(checked, power(kSanitized ? 8 : 20, rank));
}
INSTANTIATE_TEST_SUITE_P(Rank, LayoutExhaustiveTest, ::testing::Values(0, 1, 2, 3));

TEST(LayoutEquivalentTest, AgreesWithTheOracleOnEveryPairAcrossMeshes) {
  struct Candidate {
    Layout layout;
    std::vector<Oracle> oracle;  // One; Oracle has no empty state.
    std::vector<int> position_of_device;
    bool is_partial;
  };
  constexpr int kRank = 2;
  const int max_devices = kSanitized ? 3 : 4;
  std::vector<Candidate> candidates;
  for (const OracleMesh& oracle_mesh : all_meshes(max_devices)) {
    const int n = oracle_mesh.num_devices();
    TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh plain, oracle_mesh.make());
    for (int swapped = 0; swapped < (n == max_devices ? 2 : 1); ++swapped) {
      std::vector<int> ids(n);
      for (int i = 0; i < n; ++i) ids[i] = i;
      if (swapped != 0) std::swap(ids[1], ids[2]);
      TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh,
                                   Mesh::create({plain.axes().begin(), plain.axes().end()}, ids));
      std::set<std::string> seen;
      for (const Arrangement& arrangement : all_arrangements(oracle_mesh, kRank)) {
        TESSERA_ASSERT_OK_AND_ASSIGN(Layout layout, make_layout(mesh, arrangement, ReduceOp::kSum));
        if (!seen.insert(layout.to_string()).second) continue;
        // The swap of two devices is its own inverse: ids are positions of devices too.
        candidates.push_back({std::move(layout),
                              {Oracle(oracle_mesh, arrangement)},
                              ids,
                              count_of(arrangement.partial) > 1});
      }
    }
  }

  int64_t equal = 0, checked = 0;
  for (const Shape& shape : {Shape{1, 1}, Shape{2, 1}, Shape{1, 3}, Shape{4, 4}, Shape{5, 0},
                             Shape{3, 2}, Shape{2, 2}, Shape{0, 0}}) {
    // For every device: its term, and the sizes and first elements of its boxes.
    std::vector<std::vector<int64_t>> holdings;
    for (const Candidate& candidate : candidates) {
      std::vector<int64_t>& holding = holdings.emplace_back();
      holding.push_back(candidate.is_partial);
      for (int position : candidate.position_of_device) {
        const Oracle& oracle = candidate.oracle[0];
        const uint32_t rows = oracle.elements(position, 0, static_cast<int>(shape[0]));
        const uint32_t columns = oracle.elements(position, 1, static_cast<int>(shape[1]));
        const bool is_empty = rows == 0 || columns == 0;
        holding.push_back(oracle.term(position));
        holding.push_back(is_empty ? __builtin_popcount(rows) : rows);
        holding.push_back(is_empty ? __builtin_popcount(columns) : columns);
      }
    }
    for (size_t a = 0; a < candidates.size(); ++a) {
      for (size_t b = 0; b < candidates.size(); ++b) {
        const bool expected = holdings[a] == holdings[b];
        ASSERT_EQ(equivalent(candidates[a].layout, candidates[b].layout, shape), expected)
            << candidates[a].layout << " and " << candidates[b].layout << " of "
            << shape_to_string(shape);
        ++checked;
        equal += expected;
      }
    }
  }
  EXPECT_GT(checked, 10000);
  EXPECT_GT(equal, checked / 100);
}

// On more devices than a first look takes in; thirds, halves and quarters of one axis among them.
TEST(LayoutEquivalentTest, AgreesWithTheBoxesOfEveryDevice) {
  constexpr size_t kCandidates = kSanitized ? 60 : 300;
  const OracleMesh oracle_mesh({12, 6});
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, oracle_mesh.make());
  std::map<std::string, Layout> layouts;
  for (const Arrangement& arrangement : all_arrangements(oracle_mesh, 1)) {
    TESSERA_ASSERT_OK_AND_ASSIGN(Layout layout, make_layout(mesh, arrangement, ReduceOp::kSum));
    layouts.emplace(layout.to_string(), std::move(layout));
  }
  std::vector<Layout> candidates;
  for (const auto& [text, layout] : layouts) candidates.push_back(layout);
  std::shuffle(candidates.begin(), candidates.end(), std::mt19937(1));
  candidates.erase(candidates.begin() + std::min(candidates.size(), kCandidates), candidates.end());

  int64_t equal = 0, checked = 0;
  for (const int64_t size : {0, 1, 2, 5, 12, 71, 72}) {
    // By device: its term and its interval. Empty intervals are equal wherever they begin.
    std::vector<std::vector<int64_t>> holdings;
    for (const Layout& layout : candidates) {
      std::vector<int64_t>& holding = holdings.emplace_back();
      for (int64_t position = 0; position < mesh.size(); ++position) {
        const Box box = layout.box({size}, position);
        holding.push_back(layout.partial_index(position));
        holding.push_back(box.sizes[0]);
        holding.push_back(box.is_empty() ? 0 : box.offsets[0]);
      }
      holding.push_back(layout.num_partial_terms());
    }
    for (size_t a = 0; a < candidates.size(); ++a) {
      for (size_t b = 0; b < candidates.size(); ++b) {
        const bool expected = holdings[a] == holdings[b];
        ASSERT_EQ(equivalent(candidates[a], candidates[b], {size}), expected)
            << candidates[a] << " and " << candidates[b] << " of " << size;
        ++checked;
        equal += a != b && expected ? 1 : 0;
      }
    }
  }
  std::cout << layouts.size() << " layouts, " << checked << " pairs, " << equal << " equivalent\n";
  EXPECT_GT(equal, kSanitized ? 100 : 1000);
}

}  // namespace
}  // namespace tessera
