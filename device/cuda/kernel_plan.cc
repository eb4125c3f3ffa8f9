// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/kernel_plan.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace tessera::cuda {
namespace {

// Bytes of one kernel: fewer than 2^31 items even where each byte is one.
constexpr int64_t kMostBytes = int64_t{1} << 30;

// The loops of a box in two containers, all that a dim can have.
struct Walk {
  int64_t run = 1;  // elements that are contiguous on both sides
  int64_t from_offset = 0;
  int64_t to_offset = 0;
  struct Loop {
    int64_t size;
    int64_t from_stride;
    int64_t to_stride;
  };
  std::vector<Loop> loops;  // innermost first; strides and offsets in elements
};

Walk walk_of(const Box& box, const Box& from_box, const Box& to_box) {
  Walk walk;
  int64_t from_stride = 1;
  int64_t to_stride = 1;
  for (size_t dim = box.sizes.size(); dim-- > 0;) {
    const int64_t size = box.sizes[dim];
    walk.from_offset += (box.offsets[dim] - from_box.offsets[dim]) * from_stride;
    walk.to_offset += (box.offsets[dim] - to_box.offsets[dim]) * to_stride;
    if (size != 1) {
      Walk::Loop* last = walk.loops.empty() ? nullptr : &walk.loops.back();
      if (last == nullptr && from_stride == walk.run && to_stride == walk.run) {
        walk.run *= size;
      } else if (last != nullptr && from_stride == last->size * last->from_stride &&
                 to_stride == last->size * last->to_stride) {
        last->size *= size;
      } else {
        walk.loops.push_back({size, from_stride, to_stride});
      }
    }
    from_stride *= from_box.sizes[dim];
    to_stride *= to_box.sizes[dim];
  }
  return walk;
}

// Calls fn(walk) for parts of the box that one kernel can do.
template <class Fn>
void for_each_part(const Box& box, const Box& from_box, const Box& to_box, int64_t element_bytes,
                   Fn fn) {
  const int64_t elements = box.num_elements();
  if (elements == 0) return;
  const Walk walk = walk_of(box, from_box, to_box);
  const bool is_small = elements <= kMostBytes / element_bytes;
  if (is_small && walk.loops.size() <= kMaxLoops) return fn(walk);
  // Halved along the largest dim; where there are too many loops, along the smallest, which then
  // is no loop any more.
  size_t dim = box.sizes.size();
  for (size_t d = 0; d < box.sizes.size(); ++d) {
    if (box.sizes[d] == 1) continue;
    const bool is_better = dim == box.sizes.size() || (is_small ? box.sizes[d] < box.sizes[dim]
                                                                : box.sizes[d] > box.sizes[dim]);
    if (is_better) dim = d;
  }
  Box first = box;
  Box second = box;
  first.sizes[dim] = box.sizes[dim] / 2;
  second.offsets[dim] += first.sizes[dim];
  second.sizes[dim] -= first.sizes[dim];
  for_each_part(first, from_box, to_box, element_bytes, fn);
  for_each_part(second, from_box, to_box, element_bytes, fn);
}

// The loops in units of `unit` bytes per element, with `items_per_run` items in each run.
Loops loops_of(const Walk& walk, int64_t unit, int64_t items_per_run) {
  Loops loops;
  int64_t num_items = items_per_run;
  loops.items_per_run = make_divisor(static_cast<uint32_t>(items_per_run));
  for (const Walk::Loop& loop : walk.loops) {
    const int l = loops.num_loops++;
    loops.sizes[l] = make_divisor(static_cast<uint32_t>(loop.size));
    loops.from_strides[l] = loop.from_stride * unit;
    loops.to_strides[l] = loop.to_stride * unit;
    num_items *= loop.size;
  }
  TESSERA_CHECK(num_items < int64_t{1} << 31, "a kernel has more items than it can count");
  loops.num_items = static_cast<uint32_t>(num_items);
  return loops;
}

uint64_t address(const std::byte* memory) { return reinterpret_cast<uintptr_t>(memory); }

// The bits that are set in `bits` or in a stride of the walk, in bytes.
uint64_t common_bits(const Walk& walk, int64_t unit, uint64_t bits) {
  for (const Walk::Loop& loop : walk.loops) {
    bits |= static_cast<uint64_t>(loop.from_stride * unit);
    bits |= static_cast<uint64_t>(loop.to_stride * unit);
  }
  return bits;
}

// The elements that a thread takes at once where addresses and strides have these bits in common.
int32_t pack_of(uint64_t bits, int64_t size) {
  const auto vector =
      static_cast<uint64_t>(std::min<int64_t>(kVectorBytes, kElementsAtOnce * size));
  return bits % vector == 0 ? kElementsAtOnce : 1;
}

std::vector<Reduce> plan_reduce_parts(DType dtype, ReduceOp op, const Box& box,
                                      absl::Span<const std::byte* const> terms, const Box& from_box,
                                      absl::Span<std::byte* const> outs, const Box& to_box) {
  TESSERA_CHECK(!terms.empty() && terms.size() <= kMaxTerms && outs.size() <= kMaxTerms,
                "a reduction has as many terms as its kernel takes");
  const int64_t size = dtype_size(dtype);
  std::vector<Reduce> plan;
  for_each_part(box, from_box, to_box, size, [&](const Walk& walk) {
    Reduce& reduce = plan.emplace_back();
    reduce.type = element_type(dtype);
    reduce.op = reduction(op);
    reduce.num_terms = static_cast<int32_t>(terms.size());
    reduce.num_outs = static_cast<int32_t>(outs.size());
    uint64_t bits = common_bits(walk, size, 0);
    for (size_t k = 0; k < terms.size(); ++k) {
      reduce.terms[k] = terms[k] + walk.from_offset * size;
      bits |= address(reduce.terms[k]);
    }
    for (size_t j = 0; j < outs.size(); ++j) {
      reduce.outs[j] = outs[j] + walk.to_offset * size;
      bits |= address(reduce.outs[j]);
    }
    reduce.pack = bits % kVectorBytes == 0 ? static_cast<int32_t>(kVectorBytes / size) : 1;
    reduce.run_elements = static_cast<uint32_t>(walk.run);
    reduce.loops = loops_of(walk, size, (walk.run + reduce.pack - 1) / reduce.pack);
  });
  return plan;
}

}  // namespace

ElementType element_type(DType dtype) {
  static_assert(static_cast<int>(ElementType::kBool) == static_cast<int>(DType::kBool));
  static_assert(static_cast<int>(ElementType::kInt64) == static_cast<int>(DType::kInt64));
  static_assert(static_cast<int>(ElementType::kBFloat16) == static_cast<int>(DType::kBFloat16));
  static_assert(static_cast<int>(ElementType::kFloat64) == static_cast<int>(DType::kFloat64));
  return static_cast<ElementType>(dtype);
}

Reduction reduction(ReduceOp op) {
  static_assert(static_cast<int>(Reduction::kSum) == static_cast<int>(ReduceOp::kSum));
  static_assert(static_cast<int>(Reduction::kMin) == static_cast<int>(ReduceOp::kMin));
  static_assert(static_cast<int>(Reduction::kAvg) == static_cast<int>(ReduceOp::kAvg));
  return static_cast<Reduction>(op);
}

Divisor make_divisor(uint32_t divisor) {
  TESSERA_CHECK(divisor >= 1 && divisor < uint32_t{1} << 31, "a divisor of 31 bits");
  const auto shift = static_cast<uint32_t>(std::bit_width(divisor - 1));
  const uint64_t excess = (uint64_t{1} << shift) - divisor;
  return {divisor, static_cast<uint32_t>((excess << 32) / divisor + 1), shift};
}

void add_copy(const Box& box, const std::byte* from, const Box& from_box, std::byte* to,
              const Box& to_box, int64_t element_bytes, CopyPlan* plan) {
  if (box.is_empty()) return;
  const auto pointers = [&](const Walk& walk) {
    return std::pair(from + walk.from_offset * element_bytes, to + walk.to_offset * element_bytes);
  };
  const Walk whole = walk_of(box, from_box, to_box);
  if (whole.loops.empty()) {
    const auto [first_from, first_to] = pointers(whole);
    plan->dense.push_back({first_from, first_to, static_cast<uint64_t>(whole.run * element_bytes)});
    return;
  }
  for_each_part(box, from_box, to_box, element_bytes, [&](const Walk& walk) {
    const auto [first_from, first_to] = pointers(walk);
    const int64_t run_bytes = walk.run * element_bytes;
    if (plan->batches.empty() || plan->batches.back().num_copies == kMaxCopies) {
      plan->batches.emplace_back();
    }
    CopyBatch& batch = plan->batches.back();
    Copy& copy = batch.copies[batch.num_copies++];
    copy.from = first_from;
    copy.to = first_to;
    const uint64_t bits =
        common_bits(walk, element_bytes,
                    address(first_from) | address(first_to) | static_cast<uint64_t>(run_bytes));
    copy.vector_bytes = std::min(kVectorBytes, 1 << std::min(std::countr_zero(bits), 4));
    copy.loops = loops_of(walk, element_bytes, run_bytes / copy.vector_bytes);
  });
}

std::vector<Reduce> plan_reduce(DType dtype, ReduceOp op, absl::Span<const std::byte* const> terms,
                                absl::Span<std::byte* const> outs, int64_t num_elements) {
  const Box box = {{0}, {num_elements}};
  return plan_reduce_parts(dtype, op, box, terms, box, outs, box);
}

std::vector<Reduce> plan_reduce_box(DType dtype, ReduceOp op, const Box& box,
                                    absl::Span<const std::byte* const> terms, const Box& from_box,
                                    std::byte* out, const Box& to_box) {
  return plan_reduce_parts(dtype, op, box, terms, from_box, absl::MakeConstSpan(&out, 1), to_box);
}

Fill plan_fill(DType dtype, const void* element, std::byte* out, int64_t num_elements) {
  const int64_t size = dtype_size(dtype);
  Fill fill;
  fill.out = out;
  fill.num_bytes = static_cast<uint64_t>(num_elements * size);
  for (int64_t at = 0; at < kVectorBytes; at += size) {
    std::memcpy(fill.pattern + at, element, static_cast<size_t>(size));
  }
  return fill;
}

std::vector<Iota> plan_iota(DType dtype, const Shape& shape, const Box& box, std::byte* out) {
  const int64_t size = dtype_size(dtype);
  std::vector<Iota> plan;
  for_each_part(box, whole_box(shape), box, size, [&](const Walk& walk) {
    Iota& iota = plan.emplace_back();
    iota.type = element_type(dtype);
    iota.first = walk.from_offset;
    iota.out = out + walk.to_offset * size;
    uint64_t bits = address(iota.out);
    for (const Walk::Loop& loop : walk.loops) bits |= static_cast<uint64_t>(loop.to_stride * size);
    iota.pack = pack_of(bits, size);
    iota.run_elements = static_cast<uint32_t>(walk.run);
    iota.loops = loops_of(walk, 1, (walk.run + iota.pack - 1) / iota.pack);
  });
  return plan;
}

Cast plan_cast(DType from_dtype, DType to_dtype, const std::byte* from, std::byte* to,
               int64_t num_elements) {
  Cast cast;
  cast.from_type = element_type(from_dtype);
  cast.to_type = element_type(to_dtype);
  cast.from = from;
  cast.to = to;
  cast.num_elements = static_cast<uint64_t>(num_elements);
  cast.pack = std::min(pack_of(address(from), dtype_size(from_dtype)),
                       pack_of(address(to), dtype_size(to_dtype)));
  return cast;
}

}  // namespace tessera::cuda
