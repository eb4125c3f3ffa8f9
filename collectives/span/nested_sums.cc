// SPDX-License-Identifier: Apache-2.0
#include "collectives/span/nested_sums.h"

#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "device/cpu/kernels.h"

namespace tessera::span {
namespace {

constexpr int64_t kBlockBytes = 64 << 10;

}  // namespace

void add_nested(DType dtype, ReduceOp op, const TermsByHost& terms,
                absl::Span<std::byte* const> outs, int64_t num_elements, cpu::Stores stores) {
  const int64_t element_bytes = dtype_size(dtype);
  const int64_t most = std::min(num_elements, kBlockBytes / element_bytes);
  // The sum begins with the terms of the first host: they need no sum of their own.
  size_t num_sums = 0;
  for (size_t h = 1; h < terms.size(); ++h) num_sums += terms[h].size() > 1;
  std::vector<std::byte> sums(num_sums * most * element_bytes);
  for (int64_t first = 0; first < num_elements; first += most) {
    const int64_t count = std::min(most, num_elements - first);
    const int64_t offset = first * element_bytes;
    absl::InlinedVector<const std::byte*, 16> flat;
    std::byte* next_sum = sums.data();
    for (size_t h = 0; h < terms.size(); ++h) {
      absl::InlinedVector<const std::byte*, 16> of_host;
      for (const std::byte* term : terms[h]) of_host.push_back(term + offset);
      if (h == 0 || of_host.size() == 1) {
        flat.insert(flat.end(), of_host.begin(), of_host.end());
        continue;
      }
      cpu::reduce(dtype, op, of_host, absl::MakeConstSpan(&next_sum, 1), count);
      flat.push_back(next_sum);
      next_sum += most * element_bytes;
    }
    absl::InlinedVector<std::byte*, 16> to;
    for (std::byte* out : outs) to.push_back(out + offset);
    cpu::reduce(dtype, op, flat, to, count, stores);
  }
}

}  // namespace tessera::span
