// SPDX-License-Identifier: Apache-2.0
//
// With the dims of arrays in the order of compute/contraction.h the product is a product of
// matrices. Arrays that are in another order are copied first.
#include "compute/cpu/contract.h"

#include <memory>
#include <type_traits>
#include <vector>

#include "Eigen/Core"
#include "absl/container/inlined_vector.h"
#include "base/shape.h"
#include "compute/contraction.h"
#include "compute/cpu/gemm.h"
#include "compute/cpu/pointwise.h"
#include "compute/strided.h"

namespace tessera::kernels {
namespace {

using Sizes = absl::InlinedVector<int64_t, 8>;

// A matrix for each index of a batch, [batch, first, second] or [batch, second, first] in memory.
struct Matrices {
  const std::byte* data;
  bool is_transposed = false;
};

// The array as matrices: itself where its dims are in one of the two orders, else a copy.
Matrices as_matrices(DType dtype, const Labelled& array, const Labels& batch, const Labels& first,
                     const Labels& second, bool may_be_transposed,
                     std::unique_ptr<std::byte[]>& copy) {
  Labels own;
  for (const int label : array.labels) {
    if (label >= 0) own.push_back(label);
  }
  const Labels order = joined(batch, first, second);
  if (own == order) return {array.data};
  if (may_be_transposed && own == joined(batch, second, first)) return {array.data, true};
  const Sizes sizes = by_label(array.labels, array.sizes, order);
  const Sizes strides = by_label(array.labels, dense_strides(array.sizes), order);
  copy.reset(new std::byte[num_bytes(sizes, dtype)]);  // not zeroed
  copy_strided(dtype, {array.data, strides}, sizes, copy.get());
  return {copy.get()};
}

struct Product {
  int64_t batch, rows, columns, summed;
};

std::vector<float> as_floats(DType dtype, const std::byte* data, int64_t count) {
  std::vector<float> floats(count);
  cast(dtype, DType::kFloat32, data, reinterpret_cast<std::byte*>(floats.data()), count);
  return floats;
}

// c[i] = a[i] b[i] for each index of the batch. Integers of 8 bits are multiplied in 32 bits, of
// which the lowest 8 are kept.
template <class T>
void multiply(const Arithmetic& arithmetic, const Product& size, const GemmForm& form, const T* a,
              const T* b, T* c) {
  const int64_t a_size = size.rows * size.summed;
  const int64_t b_size = size.summed * size.columns;
  const int64_t c_size = size.rows * size.columns;
  const GemmSize each = {size.rows, size.columns, size.summed};
  for (int64_t i = 0; i < size.batch; ++i) {
    if constexpr (std::is_floating_point_v<T>) {
      gemm(arithmetic, each, form, a + i * a_size, b + i * b_size, c + i * c_size);
    } else if constexpr (sizeof(T) == 1) {
      const std::vector<int32_t> left(a + i * a_size, a + (i + 1) * a_size);
      const std::vector<int32_t> right(b + i * b_size, b + (i + 1) * b_size);
      std::vector<int32_t> result(c_size);
      gemm(arithmetic, each, left.data(), right.data(), result.data());
      for (int64_t k = 0; k < c_size; ++k) c[i * c_size + k] = static_cast<T>(result[k]);
    } else {
      gemm(arithmetic, each, a + i * a_size, b + i * b_size, c + i * c_size);
    }
  }
}

void multiply(const Arithmetic& arithmetic, DType dtype, const Product& size, const Matrices& a,
              const Matrices& b, std::byte* c) {
  const GemmForm form = {a.is_transposed, b.is_transposed};
  visit_dtype(dtype, [&]<class T>() {
    if constexpr (std::is_same_v<T, Eigen::half> || std::is_same_v<T, Eigen::bfloat16>) {
      const std::vector<float> left =
          as_floats(dtype, a.data, size.batch * size.rows * size.summed);
      const std::vector<float> right =
          as_floats(dtype, b.data, size.batch * size.summed * size.columns);
      std::vector<float> result(size.batch * size.rows * size.columns);
      multiply(arithmetic, size, form, left.data(), right.data(), result.data());
      cast(DType::kFloat32, dtype, reinterpret_cast<const std::byte*>(result.data()), c,
           static_cast<int64_t>(result.size()));
    } else if constexpr (!std::is_same_v<T, bool>) {
      multiply(arithmetic, size, form, reinterpret_cast<const T*>(a.data),
               reinterpret_cast<const T*>(b.data), reinterpret_cast<T*>(c));
    }
  });
}

}  // namespace

void contract(const Arithmetic& arithmetic, DType dtype, const Labelled& a, const Labelled& b,
              const Labels& labels, absl::Span<const int64_t> sizes, std::byte* out) {
  const auto [batch, rows, columns, summed] = ContractionLabels::create(a, b, labels);
  const Labels order = joined(batch, rows, columns);
  const Product product = {num_elements(by_label(labels, sizes, batch)),
                           num_elements(by_label(labels, sizes, rows)),
                           num_elements(by_label(labels, sizes, columns)),
                           num_elements(by_label(a.labels, a.sizes, summed))};
  const bool is_float = is_floating_point(dtype);
  std::unique_ptr<std::byte[]> a_copy, b_copy, c_copy;
  const Matrices left = as_matrices(dtype, a, batch, rows, summed, is_float, a_copy);
  const Matrices right = as_matrices(dtype, b, batch, summed, columns, is_float, b_copy);
  std::byte* result = out;
  if (order != labels) {
    c_copy.reset(new std::byte[num_bytes(sizes, dtype)]);
    result = c_copy.get();
  }
  multiply(arithmetic, dtype, product, left, right, result);
  if (result == out) return;
  const Sizes ordered_sizes = by_label(labels, sizes, order);
  copy_strided(dtype, {result, by_label(order, dense_strides(ordered_sizes), labels)}, sizes, out);
}

}  // namespace tessera::kernels
