// SPDX-License-Identifier: Apache-2.0
//
// copy_box and reduce_box against loops over indices, for every small box in every small
// container; reduce against scalars where blocks end.
#include "collectives/host/kernels.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace tessera::host {
namespace {

// All boxes inside [0, limit) of each dim, empty ones included.
std::vector<Box> boxes_within(const Box& outer) {
  std::vector<Box> result = {Box{}};
  for (size_t dim = 0; dim < outer.sizes.size(); ++dim) {
    std::vector<Box> longer;
    for (const Box& box : result) {
      for (int64_t first = 0; first <= outer.sizes[dim]; ++first) {
        for (int64_t size = 0; first + size <= outer.sizes[dim]; ++size) {
          Box next = box;
          next.offsets.push_back(outer.offsets[dim] + first);
          next.sizes.push_back(size);
          longer.push_back(next);
        }
      }
    }
    result = longer;
  }
  return result;
}

template <class Fn>
void for_each_index(const Box& box, Fn fn) {
  std::vector<int64_t> index = box.offsets;
  for (int64_t left = box.num_elements(); left > 0; --left) {
    fn(index);
    for (int dim = static_cast<int>(index.size()) - 1; dim >= 0; --dim) {
      if (++index[dim] < box.offsets[dim] + box.sizes[dim]) break;
      index[dim] = box.offsets[dim];
    }
  }
}

int64_t place_of(const Box& container, const std::vector<int64_t>& index) {
  int64_t place = 0;
  for (size_t dim = 0; dim < index.size(); ++dim) {
    place = place * container.sizes[dim] + index[dim] - container.offsets[dim];
  }
  return place;
}

const std::byte* bytes(const std::vector<int32_t>& v) {
  return reinterpret_cast<const std::byte*>(v.data());
}
std::byte* bytes(std::vector<int32_t>& v) { return reinterpret_cast<std::byte*>(v.data()); }

// `box` copied, and reduced from three copies, from one container to another.
void check_box(const Box& box, const Box& from, const Box& to) {
  std::vector<int32_t> source(from.num_elements());
  std::iota(source.begin(), source.end(), 1);
  std::vector<int32_t> want(to.num_elements(), -1), want_sum = want;
  for_each_index(box, [&](const std::vector<int64_t>& index) {
    want[place_of(to, index)] = source[place_of(from, index)];
    want_sum[place_of(to, index)] = 3 * source[place_of(from, index)];
  });
  std::vector<int32_t> copied(to.num_elements(), -1), summed = copied;
  copy_box(box, {bytes(source), from}, {bytes(copied), to}, 4);
  ASSERT_EQ(copied, want) << box.to_string() << " of " << from.to_string() << " to "
                          << to.to_string();
  const ConstBoxView term = {bytes(std::as_const(source)), from};
  const ConstBoxView terms[] = {term, term, term};
  reduce_box(DType::kInt32, ReduceOp::kSum, box, terms, {bytes(summed), to});
  ASSERT_EQ(summed, want_sum) << box.to_string() << " of " << from.to_string() << " to "
                              << to.to_string();
}

// Containers that hold `shape` and some margin, or none.
std::vector<Box> containers_of(const Box& whole) {
  std::vector<Box> result = {whole};
  for (size_t dim = 0; dim < whole.sizes.size(); ++dim) {
    Box larger = whole;
    larger.offsets[dim] -= 1;
    larger.sizes[dim] += 2;
    result.push_back(larger);
  }
  return result;
}

TEST(KernelsTest, BoxesAreCopiedAndReducedElementByElement) {
  for (const Shape& shape : {Shape{}, Shape{3}, Shape{2, 3}, Shape{2, 1, 2}, Shape{2, 2, 1, 2}}) {
    Box whole = whole_box(shape);
    for (int64_t& offset : whole.offsets) offset = 5;
    for (const Box& box : boxes_within(whole)) {
      for (const Box& from : containers_of(whole)) {
        for (const Box& to : containers_of(whole)) check_box(box, from, to);
      }
    }
  }
}

TEST(KernelsTest, ABoxThatIsItsContainerIsOneRun) {
  const Box box = {{7, 3}, {4, 5}};
  check_box(box, box, box);
}

// Blocks of reduce() end at multiples of 2048 elements.
TEST(KernelsTest, EveryElementIsReducedWhereBlocksEnd) {
  for (const int64_t n : {1, 2047, 2048, 2049, 4096, 5000}) {
    std::vector<int32_t> a(n), b(n), out(n), want(n);
    for (int64_t i = 0; i < n; ++i) {
      a[i] = static_cast<int32_t>(i);
      b[i] = static_cast<int32_t>(7 * i + 1);
      want[i] = a[i] + b[i];
    }
    const std::byte* terms[] = {bytes(std::as_const(a)), bytes(std::as_const(b))};
    // One out apart, and one in place of a term.
    std::byte* outs[] = {bytes(out), bytes(b)};
    reduce(DType::kInt32, ReduceOp::kSum, terms, outs, n);
    EXPECT_EQ(out, want) << n;
    EXPECT_EQ(b, want) << n;
  }
}

TEST(KernelsTest, NanLosesAgainstNumbersInEveryPlace) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int place = 0; place < 3; ++place) {
    float values[3] = {4, 2, 3};
    values[place] = nan;
    const std::byte* terms[3];
    for (int k = 0; k < 3; ++k) terms[k] = reinterpret_cast<const std::byte*>(&values[k]);
    float least, most;
    std::byte* out = reinterpret_cast<std::byte*>(&least);
    reduce(DType::kFloat32, ReduceOp::kMin, terms, absl::MakeConstSpan(&out, 1), 1);
    out = reinterpret_cast<std::byte*>(&most);
    reduce(DType::kFloat32, ReduceOp::kMax, terms, absl::MakeConstSpan(&out, 1), 1);
    EXPECT_EQ(least, place == 1 ? 3 : 2) << place;
    EXPECT_EQ(most, place == 0 ? 3 : 4) << place;
  }
}

TEST(KernelsTest, NothingIsTouchedForZeroElements) {
  reduce(DType::kFloat64, ReduceOp::kSum, {nullptr, nullptr}, {nullptr}, 0);
  const Box empty = {{2, 2}, {0, 3}};
  copy_box(empty, {nullptr, empty}, {nullptr, empty}, 8);
}

}  // namespace
}  // namespace tessera::host
