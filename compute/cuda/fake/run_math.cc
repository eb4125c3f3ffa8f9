// SPDX-License-Identifier: Apache-2.0
#include "compute/cuda/fake/run_math.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "compute/cuda/math_bodies.h"

namespace tessera::cuda {
namespace {

using Touched = std::vector<std::pair<const std::byte*, uint64_t>>;

template <class Value>
void run_value(const Value& value) {
  with_body(value, [&value](auto body) {
    for (uint64_t i = 0; i < value.num_items; ++i) body.item(value, static_cast<int64_t>(i));
  });
}

// The lanes of each item one after the other, then their parts in pairs, as on a GPU.
void run_value(const ReduceDims& reduce) {
  with_body(reduce, [&reduce]<class Body>(Body) {
    std::vector<typename Body::Part> parts(reduce.lanes);
    for (uint64_t i = 0; i < reduce.num_items; ++i) {
      const auto item = static_cast<int64_t>(i);
      for (int lane = 0; lane < reduce.lanes; ++lane) parts[lane] = Body::part(reduce, item, lane);
      for (int distance = first_distance(reduce.lanes); distance > 0 && distance < reduce.lanes;
           distance = next_distance(distance)) {
        for (int lane = 0; lane + distance < reduce.lanes; ++lane) {
          if (takes_total(lane, distance)) Body::add_to(parts[lane], parts[lane + distance]);
        }
      }
      Body::give(reduce, item, parts[0]);
    }
  });
}

// Elements from the least to the largest offset of a space in an array; strides may be negative.
class Extent {
 public:
  void add(const Space& space, const int64_t* strides) {
    for (int dim = 0; dim < space.num_dims; ++dim) add(space.sizes[dim], strides[dim]);
  }
  void add(int64_t size, int64_t stride) {
    const int64_t reach = (size - 1) * stride;
    (reach < 0 ? least_ : most_) += reach;
  }
  std::pair<const std::byte*, uint64_t> bytes(const std::byte* array, int64_t size) const {
    return {array + least_ * size, static_cast<uint64_t>((most_ - least_ + 1) * size)};
  }

 private:
  int64_t least_ = 0;
  int64_t most_ = 0;
};

// All of a dense array; nothing where there is none.
void add_dense(const void* array, int64_t count, int64_t size, Touched* touched) {
  if (array == nullptr || count == 0) return;
  touched->emplace_back(static_cast<const std::byte*>(array), static_cast<uint64_t>(count * size));
}
void add_indices(const IndexArray& indices, Touched* touched) {
  add_dense(indices.data, indices.count, indices.is_64 ? 8 : 4, touched);
}
int64_t count_of(const LineShape& lines) { return lines.outer * lines.size * lines.inner; }
template <class Value>
int64_t items_of(const Value& value) {
  return static_cast<int64_t>(value.num_items);
}
// The bytes of an element of an operand, where a condition is of bool, and of a result.
int64_t bytes_of_operand(const Map& map, int k) {
  return map.kind == Map::Kind::kSelect && k == 0 ? 1 : element_bytes_of(map.type);
}
int64_t bytes_of_result(const Map& map) {
  const bool gives_bool = map.kind == Map::Kind::kPointwise && kernels::gives_bool(map.op);
  return gives_bool ? 1 : element_bytes_of(map.type);
}

bool is_multiple(const std::byte* address, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % static_cast<uint64_t>(bytes) == 0;
}

// Whether vectors that a thread loads or stores begin where no vector can.
template <class Value>
bool is_misaligned(const Value& /*value*/) {
  return false;
}
bool is_misaligned(const Map& map) {
  if (!map.is_packed) return false;
  const auto vector = [&](int64_t size) {
    return std::min<int64_t>(kVectorBytes, map_pack(element_bytes_of(map.type)) * size);
  };
  const int64_t pack = map_pack(element_bytes_of(map.type));
  if (!is_multiple(map.out, vector(bytes_of_result(map)))) return true;
  for (int k = 0; k < map.num_operands; ++k) {
    const MapOperand& in = map.in[k];
    if (in.run_stride == 0) continue;
    if (in.run_stride != 1 || !is_multiple(in.data, vector(bytes_of_operand(map, k)))) return true;
    for (int dim = 0; dim < map.num_outer; ++dim) {
      if (in.strides[dim] % pack != 0) return true;
    }
  }
  return false;
}
bool is_misaligned(const ReduceDims& reduce) {
  if (reduce.num_packs == 0) return false;
  if (!is_multiple(reduce.in, reduce.pack * element_bytes_of(reduce.from))) return true;
  const auto splits_packs = [&](const Space& space, const int64_t* strides) {
    for (int dim = 0; dim < space.num_dims; ++dim) {
      if (strides[dim] != 1 && strides[dim] % reduce.pack != 0) return true;
    }
    return false;
  };
  return splits_packs(reduce.kept, reduce.kept_strides) ||
         splits_packs(reduce.reduced, reduce.reduced_strides);
}

int64_t product4(const int64_t* sizes) { return sizes[0] * sizes[1] * sizes[2] * sizes[3]; }

}  // namespace

#define TESSERA_RUN_(Value)                                                      \
  void run(const Value& value) { run_value(value); }                             \
  std::string invalid(const Value& value) {                                      \
    if (value.num_items == 0) return "a kernel of no items";                     \
    return is_misaligned(value) ? "a kernel of memory that is not aligned" : ""; \
  }
TESSERA_MATH_KERNELS_(TESSERA_RUN_)
#undef TESSERA_RUN_

Touched touched(const Map& map) {
  Touched touched;
  int64_t count = map.run_elements;
  for (int dim = 0; dim < map.num_outer; ++dim) count *= map.outer[dim].divisor;
  for (int k = 0; k < map.num_operands; ++k) {
    if (map.in[k].data == nullptr) continue;
    Extent extent;
    extent.add(map.run_elements, map.in[k].run_stride);
    for (int dim = 0; dim < map.num_outer; ++dim) {
      extent.add(map.outer[dim].divisor, map.in[k].strides[dim]);
    }
    touched.push_back(extent.bytes(map.in[k].data, bytes_of_operand(map, k)));
  }
  add_dense(map.out, count, bytes_of_result(map), &touched);
  return touched;
}

Touched touched(const ReduceDims& reduce) {
  Touched touched;
  if (reduce.num_packs > 0) {
    Extent extent;
    extent.add(reduce.kept, reduce.kept_strides);
    extent.add(reduce.reduced, reduce.reduced_strides);
    touched.push_back(extent.bytes(reduce.in, element_bytes_of(reduce.from)));
  }
  const int64_t results = items_of(reduce) * (reduce.kept_is_fastest ? reduce.pack : 1);
  add_dense(reduce.out, results, element_bytes_of(reduce.to), &touched);
  return touched;
}

Touched touched(const CumSum& sums) {
  Touched touched;
  add_dense(sums.in, count_of(sums.lines), element_bytes_of(sums.type), &touched);
  add_dense(sums.out, sums.lines.outer * sums.count * sums.lines.inner, element_bytes_of(sums.type),
            &touched);
  return touched;
}

Touched touched(const ArgExtreme& search) {
  Touched touched;
  add_dense(search.in, count_of(search.lines), element_bytes_of(search.type), &touched);
  add_dense(search.numbers.array, count_of(search.lines), 8, &touched);
  add_dense(search.out, items_of(search), 8, &touched);
  return touched;
}

Touched touched(const MergePass& pass) {
  Touched touched;
  add_dense(pass.in, count_of(pass.lines), element_bytes_of(pass.type), &touched);
  add_dense(pass.from, items_of(pass), 8, &touched);
  add_dense(pass.to, items_of(pass), 8, &touched);
  return touched;
}

Touched touched(const TakeOrdered& take) {
  Touched touched;
  add_dense(take.in, count_of(take.lines), element_bytes_of(take.type), &touched);
  add_dense(take.order, count_of(take.lines), 8, &touched);
  add_dense(take.numbers.array, count_of(take.lines), 8, &touched);
  add_dense(take.values, items_of(take), element_bytes_of(take.type), &touched);
  add_dense(take.indices, items_of(take), 8, &touched);
  return touched;
}

Touched touched(const CheckIndices& check) {
  Touched touched;
  add_indices(check.indices, &touched);
  add_dense(check.first_wrong, 1, 8, &touched);
  return touched;
}

Touched touched(const ReportIndex& report) {
  Touched touched;
  add_indices(report.indices, &touched);
  add_dense(report.first_wrong, 1, 8, &touched);
  add_dense(report.out, 2, 8, &touched);
  return touched;
}

Touched touched(const Take& take) {
  Touched touched;
  add_indices(take.indices, &touched);
  add_dense(take.in, count_of(take.lines), take.element_bytes, &touched);
  add_dense(take.out, items_of(take), take.element_bytes, &touched);
  return touched;
}

Touched touched(const ScatterAdd& scatter) {
  Touched touched;
  const int64_t size = element_bytes_of(scatter.type);
  add_indices(scatter.indices, &touched);
  add_dense(scatter.order, scatter.indices.count, 8, &touched);
  add_dense(scatter.in, items_of(scatter), size, &touched);
  add_dense(scatter.updates, scatter.lines.outer * scatter.indices.count * scatter.lines.inner,
            size, &touched);
  add_dense(scatter.out, items_of(scatter), size, &touched);
  return touched;
}

Touched touched(const OneHot& hot) {
  Touched touched;
  add_indices(hot.indices, &touched);
  add_dense(hot.out, items_of(hot), 4, &touched);
  return touched;
}

Touched touched(const Pick& pick) {
  Touched touched;
  add_indices(pick.indices, &touched);
  add_dense(pick.in, items_of(pick) * pick.columns, pick.element_bytes, &touched);
  add_dense(pick.out, items_of(pick), pick.element_bytes, &touched);
  return touched;
}

Touched touched(const MaskLater& mask) {
  Touched touched;
  add_dense(mask.in, items_of(mask), element_bytes_of(mask.type), &touched);
  add_dense(mask.out, items_of(mask), element_bytes_of(mask.type), &touched);
  return touched;
}

Touched touched(const Image& image) {
  Touched touched;
  const int64_t size = element_bytes_of(image.type);
  add_dense(image.a.data, product4(image.a.sizes), size, &touched);
  add_dense(image.b.data, product4(image.b.sizes), size, &touched);
  add_dense(image.out, items_of(image), size, &touched);
  return touched;
}

Touched touched(const Draw& draw) {
  Touched touched;
  add_dense(draw.out, items_of(draw), element_bytes_of(draw.type), &touched);
  return touched;
}

Touched touched(const Step& step) {
  Touched touched;
  const int64_t size = element_bytes_of(step.type);
  add_dense(step.gradient, items_of(step), size, &touched);
  for (int k = 0; k <= kernels::num_step_slots(step.step.rule); ++k) {
    add_dense(step.from[k], items_of(step), size, &touched);
    add_dense(step.to[k], items_of(step), size, &touched);
  }
  return touched;
}

Touched touched(const Product& product) {
  const int64_t size = element_bytes_of(product.type);
  Extent a;
  a.add(product.batch, product.a_batch_stride);
  a.add(product.rows, product.a_row_stride);
  a.add(product.summed, product.a_summed_stride);
  Extent b;
  b.add(product.batch, product.b_batch_stride);
  b.add(product.summed, product.b_summed_stride);
  b.add(product.columns, product.b_column_stride);
  Touched touched = {a.bytes(product.a, size), b.bytes(product.b, size)};
  add_dense(product.c, items_of(product), size, &touched);
  return touched;
}

}  // namespace tessera::cuda
