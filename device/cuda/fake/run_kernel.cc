// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/fake/run_kernel.h"

#include <algorithm>
#include <string>

#include "device/cuda/kernel_bodies.h"

namespace tessera::cuda {
namespace {

template <class T>
void run_reduce_of(const Reduce& reduce) {
  for (uint32_t i = 0; i < reduce.loops.num_items; ++i) reduce_item<T>(reduce, i);
}

void run(const Reduce& reduce) {
  switch (reduce.type) {
    case ElementType::kBool:
    case ElementType::kUint8:
      return run_reduce_of<uint8_t>(reduce);
    case ElementType::kInt8:
      return run_reduce_of<int8_t>(reduce);
    case ElementType::kInt32:
      return run_reduce_of<int32_t>(reduce);
    case ElementType::kInt64:
      return run_reduce_of<int64_t>(reduce);
    case ElementType::kFloat16:
      return run_reduce_of<Half>(reduce);
    case ElementType::kBFloat16:
      return run_reduce_of<BFloat16>(reduce);
    case ElementType::kFloat32:
      return run_reduce_of<float>(reduce);
    case ElementType::kFloat64:
      return run_reduce_of<double>(reduce);
  }
}

void run(const CopyBatch& batch) {
  for (int c = 0; c < batch.num_copies; ++c) {
    const Copy& copy = batch.copies[c];
    for (uint32_t i = 0; i < copy.loops.num_items; ++i) copy_item(copy, i);
  }
}

void run(const Fill& fill) {
  const uint64_t items = (fill.num_bytes + kVectorBytes - 1) / kVectorBytes;
  for (uint64_t i = 0; i < items; ++i) fill_item(fill, i);
}

void run(const Iota& iota) {
  for (uint32_t i = 0; i < iota.loops.num_items; ++i) {
    iota.pack == 1 ? iota_item<1>(iota, i) : iota_item<kElementsAtOnce>(iota, i);
  }
}

void run(const Cast& cast) {
  const auto pack = static_cast<uint64_t>(cast.pack);
  const uint64_t items = (cast.num_elements + pack - 1) / pack;
  for (uint64_t i = 0; i < items; ++i) {
    cast.pack == 1 ? cast_item<1>(cast, i) : cast_item<kElementsAtOnce>(cast, i);
  }
}

uint64_t size_of(ElementType type) {
  switch (type) {
    case ElementType::kBool:
    case ElementType::kInt8:
    case ElementType::kUint8:
      return 1;
    case ElementType::kFloat16:
    case ElementType::kBFloat16:
      return 2;
    case ElementType::kInt32:
    case ElementType::kFloat32:
      return 4;
    case ElementType::kInt64:
    case ElementType::kFloat64:
      return 8;
  }
  return 0;
}

// The span from the first byte of the first run to the last byte of the last run.
uint64_t extent(const Loops& loops, const int64_t* strides, uint64_t unit, uint64_t run_bytes) {
  uint64_t last = 0;
  for (int l = 0; l < loops.num_loops; ++l) {
    last += (loops.sizes[l].divisor - 1) * static_cast<uint64_t>(strides[l]) * unit;
  }
  return last + run_bytes;
}

using Touched = std::vector<std::pair<const std::byte*, uint64_t>>;

Touched touched(const CopyBatch& batch) {
  Touched result;
  for (int c = 0; c < batch.num_copies; ++c) {
    const Copy& copy = batch.copies[c];
    const uint64_t run =
        copy.loops.items_per_run.divisor * uint64_t{1} * static_cast<uint64_t>(copy.vector_bytes);
    result.emplace_back(copy.from, extent(copy.loops, copy.loops.from_strides, 1, run));
    result.emplace_back(copy.to, extent(copy.loops, copy.loops.to_strides, 1, run));
  }
  return result;
}

Touched touched(const Reduce& reduce) {
  const uint64_t run = reduce.run_elements * size_of(reduce.type);
  Touched result;
  for (int k = 0; k < reduce.num_terms; ++k) {
    result.emplace_back(reduce.terms[k], extent(reduce.loops, reduce.loops.from_strides, 1, run));
  }
  for (int j = 0; j < reduce.num_outs; ++j) {
    result.emplace_back(reduce.outs[j], extent(reduce.loops, reduce.loops.to_strides, 1, run));
  }
  return result;
}

Touched touched(const Fill& fill) { return {{fill.out, fill.num_bytes}}; }

Touched touched(const Iota& iota) {
  const uint64_t size = size_of(iota.type);
  const uint64_t run = iota.run_elements * size;
  return {{iota.out, extent(iota.loops, iota.loops.to_strides, size, run)}};
}

Touched touched(const Cast& cast) {
  return {{cast.from, cast.num_elements * size_of(cast.from_type)},
          {cast.to, cast.num_elements * size_of(cast.to_type)}};
}

bool is_aligned(const std::byte* memory, uint64_t bytes) {
  return reinterpret_cast<uintptr_t>(memory) % bytes == 0;
}

// The alignment of `pack` elements that a thread loads or stores at once.
uint64_t vector_of(ElementType type, int32_t pack) {
  return std::min<uint64_t>(kVectorBytes, static_cast<uint64_t>(pack) * size_of(type));
}

std::string invalid(const CopyBatch& batch) {
  if (batch.num_copies < 1 || batch.num_copies > kMaxCopies) return "a batch of no copies";
  for (int c = 0; c < batch.num_copies; ++c) {
    const Copy& copy = batch.copies[c];
    const auto vector = static_cast<uint64_t>(copy.vector_bytes);
    if (copy.loops.num_items == 0) return "a copy of no items";
    bool aligned = is_aligned(copy.from, vector) && is_aligned(copy.to, vector);
    for (int l = 0; l < copy.loops.num_loops; ++l) {
      aligned = aligned && static_cast<uint64_t>(copy.loops.from_strides[l]) % vector == 0 &&
                static_cast<uint64_t>(copy.loops.to_strides[l]) % vector == 0;
    }
    if (!aligned) return "a copy by vectors that are not aligned";
  }
  return "";
}

std::string invalid(const Reduce& reduce) {
  if (reduce.num_terms < 1 || reduce.num_terms > kMaxTerms || reduce.num_outs < 1 ||
      reduce.num_outs > kMaxTerms) {
    return "a reduction without terms or outs";
  }
  if (reduce.loops.num_items == 0) return "a reduction of no items";
  const uint64_t vector = reduce.pack > 1 ? kVectorBytes : size_of(reduce.type);
  bool aligned = true;
  for (int k = 0; k < reduce.num_terms; ++k) aligned &= is_aligned(reduce.terms[k], vector);
  for (int j = 0; j < reduce.num_outs; ++j) aligned &= is_aligned(reduce.outs[j], vector);
  return aligned ? "" : "a reduction of memory that is not aligned";
}

std::string invalid(const Fill& fill) {
  if (fill.num_bytes == 0) return "a fill of no bytes";
  return is_aligned(fill.out, kVectorBytes) ? "" : "a fill of memory that is not aligned";
}

std::string invalid(const Iota& iota) {
  if (iota.loops.num_items == 0) return "an iota of no items";
  const uint64_t vector = vector_of(iota.type, iota.pack);
  bool aligned = is_aligned(iota.out, vector);
  for (int l = 0; l < iota.loops.num_loops; ++l) {
    aligned = aligned &&
              static_cast<uint64_t>(iota.loops.to_strides[l]) * size_of(iota.type) % vector == 0;
  }
  return aligned ? "" : "an iota of memory that is not aligned";
}

std::string invalid(const Cast& cast) {
  if (cast.num_elements == 0) return "a cast of nothing";
  const bool aligned = is_aligned(cast.from, vector_of(cast.from_type, cast.pack)) &&
                       is_aligned(cast.to, vector_of(cast.to_type, cast.pack));
  return aligned ? "" : "a cast of memory that is not aligned";
}

}  // namespace

void run_kernel(const Kernel& kernel) {
  std::visit([](const auto& values) { run(values); }, kernel);
}

Touched touched_bytes(const Kernel& kernel) {
  return std::visit([](const auto& values) { return touched(values); }, kernel);
}

std::string why_invalid(const Kernel& kernel) {
  return std::visit([](const auto& values) { return invalid(values); }, kernel);
}

}  // namespace tessera::cuda
