// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/fake/ring_sum.h"

#include <cmath>
#include <cstring>
#include <type_traits>

#include "Eigen/Core"

namespace tessera::nccl {
namespace {

template <class T>
T step(ReduceOp op, T total, T term) {
  if constexpr (std::is_integral_v<T>) {
    // All arithmetic is modulo 2^64, so its low bits are right modulo 2^bits.
    const auto a = static_cast<uint64_t>(total);
    const auto b = static_cast<uint64_t>(term);
    if (op == ReduceOp::kMin) return term < total ? term : total;
    if (op == ReduceOp::kMax) return total < term ? term : total;
    return static_cast<T>(op == ReduceOp::kProd ? a * b : a + b);
  } else if constexpr (std::is_same_v<T, double>) {
    if (op == ReduceOp::kMin) return std::fmin(term, total);
    if (op == ReduceOp::kMax) return std::fmax(term, total);
    return op == ReduceOp::kProd ? total * term : total + term;
  } else {
    const auto a = static_cast<float>(total);
    const auto b = static_cast<float>(term);
    if (op == ReduceOp::kMin) return static_cast<T>(std::fmin(b, a));
    if (op == ReduceOp::kMax) return static_cast<T>(std::fmax(b, a));
    return static_cast<T>(op == ReduceOp::kProd ? a * b : a + b);
  }
}

template <class T>
T element(const std::byte* term, uint64_t i, ReduceOp op, size_t num_terms) {
  T value;
  std::memcpy(&value, term + i * sizeof(T), sizeof(T));
  if constexpr (!std::is_integral_v<T>) {
    const T part = static_cast<T>(1.0 / static_cast<double>(num_terms));
    if (op == ReduceOp::kAvg) return step<T>(ReduceOp::kProd, value, part);
  }
  return value;
}

}  // namespace

void ring_sum(DType dtype, ReduceOp op, absl::Span<const std::byte* const> terms, uint64_t count,
              std::byte* to) {
  visit_dtype(dtype, [&]<class T>() {
    if constexpr (!std::is_same_v<T, bool>) {
      for (uint64_t i = 0; i < count; ++i) {
        T total = element<T>(terms[0], i, op, terms.size());
        for (size_t k = 1; k < terms.size(); ++k) {
          total = step<T>(op, total, element<T>(terms[k], i, op, terms.size()));
        }
        std::memcpy(to + i * sizeof(T), &total, sizeof(T));
      }
    }
  });
}

}  // namespace tessera::nccl
