// SPDX-License-Identifier: Apache-2.0
//
// Labels are of four kinds: of both operands and the result (batch), of one operand and the result
// (rows, columns), and of both operands alone (summed). With the dims of an array in that order the
// product is one of matrices. Arrays that are in another order are copied first.
#include "ops/kernels/contract.h"

#include <algorithm>
#include <type_traits>

#include "Eigen/Core"
#include "absl/container/inlined_vector.h"
#include "base/shape.h"
#include "ops/kernels/gemm.h"
#include "ops/kernels/pointwise.h"
#include "ops/kernels/strided_walk.h"

namespace tessera::kernels {
namespace {

using Sizes = absl::InlinedVector<int64_t, 8>;

bool has(const std::vector<int>& labels, int label) {
  return std::find(labels.begin(), labels.end(), label) != labels.end();
}

// The sizes, or strides, of an array by a list of labels that it has.
Sizes by_label(const std::vector<int>& labels, absl::Span<const int64_t> values,
               const std::vector<int>& order) {
  Sizes result;
  for (const int label : order) {
    result.push_back(values[std::find(labels.begin(), labels.end(), label) - labels.begin()]);
  }
  return result;
}

// The array with its dims in another order: itself where that is the same, else a copy.
const std::byte* ordered(DType dtype, const Labelled& array, const std::vector<int>& order,
                         std::vector<std::byte>& copy) {
  std::vector<int> own;
  for (const int label : array.labels) {
    if (label >= 0) own.push_back(label);
  }
  if (own == order) return array.data;
  const Sizes sizes = by_label(array.labels, array.sizes, order);
  const Sizes strides = by_label(array.labels, dense_strides(array.sizes), order);
  copy.resize(num_bytes(sizes, dtype));
  copy_strided(dtype, {array.data, strides}, sizes, copy.data());
  return copy.data();
}

struct Product {
  int64_t batch, rows, columns, summed;
};

// c[b] = a[b] b[b] of integers, dense. A row of the result is accumulated from rows of b. Products
// wrap: they are ones of unsigned numbers, and of 8 bits ones of int.
template <class T>
void multiply_integers(const Product& size, const T* a, const T* b, T* c) {
  using Sum = std::make_unsigned_t<T>;
  std::vector<Sum> row(size.columns);
  for (int64_t batch = 0; batch < size.batch; ++batch) {
    for (int64_t i = 0; i < size.rows; ++i) {
      std::fill(row.begin(), row.end(), Sum(0));
      for (int64_t k = 0; k < size.summed; ++k) {
        const auto left = static_cast<Sum>(a[i * size.summed + k]);
        const T* const right = b + k * size.columns;
        for (int64_t j = 0; j < size.columns; ++j) {
          row[j] = static_cast<Sum>(row[j] + left * static_cast<Sum>(right[j]));
        }
      }
      for (int64_t j = 0; j < size.columns; ++j) c[i * size.columns + j] = static_cast<T>(row[j]);
    }
    a += size.rows * size.summed;
    b += size.summed * size.columns;
    c += size.rows * size.columns;
  }
}

template <class T>
std::vector<float> as_floats(const T* data, int64_t count) {
  std::vector<float> floats(count);
  for (int64_t i = 0; i < count; ++i) floats[i] = static_cast<float>(data[i]);
  return floats;
}

template <class T>
void multiply(const Product& size, const T* a, const T* b, T* c) {
  const int64_t a_size = size.rows * size.summed;
  const int64_t b_size = size.summed * size.columns;
  const int64_t c_size = size.rows * size.columns;
  if constexpr (std::is_integral_v<T>) {
    return multiply_integers(size, a, b, c);
  } else if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
    for (int64_t batch = 0; batch < size.batch; ++batch) {
      gemm({size.rows, size.columns, size.summed}, a + batch * a_size, b + batch * b_size,
           c + batch * c_size);
    }
  } else {
    const std::vector<float> left = as_floats(a, size.batch * a_size);
    const std::vector<float> right = as_floats(b, size.batch * b_size);
    std::vector<float> result(size.batch * c_size);
    multiply(size, left.data(), right.data(), result.data());
    for (size_t i = 0; i < result.size(); ++i) c[i] = static_cast<T>(result[i]);
  }
}

}  // namespace

void contract(DType dtype, const Labelled& a, const Labelled& b, const std::vector<int>& labels,
              absl::Span<const int64_t> sizes, std::byte* out) {
  std::vector<int> batch, rows, columns, summed;
  for (const int label : labels) {
    const bool in_a = has(a.labels, label);
    const bool in_b = has(b.labels, label);
    (in_a && in_b ? batch : in_a ? rows : columns).push_back(label);
  }
  for (const int label : a.labels) {
    if (label >= 0 && !has(labels, label)) summed.push_back(label);
  }
  const auto joined = [](std::vector<int> first, const std::vector<int>& second,
                         const std::vector<int>& third) {
    first.insert(first.end(), second.begin(), second.end());
    first.insert(first.end(), third.begin(), third.end());
    return first;
  };
  const std::vector<int> order = joined(batch, rows, columns);
  const Product product = {num_elements(by_label(labels, sizes, batch)),
                           num_elements(by_label(labels, sizes, rows)),
                           num_elements(by_label(labels, sizes, columns)),
                           num_elements(by_label(a.labels, a.sizes, summed))};
  std::vector<std::byte> a_copy, b_copy, c_copy;
  const std::byte* const left = ordered(dtype, a, joined(batch, rows, summed), a_copy);
  const std::byte* const right = ordered(dtype, b, joined(batch, summed, columns), b_copy);
  std::byte* result = out;
  if (order != labels) {
    c_copy.resize(num_bytes(sizes, dtype));
    result = c_copy.data();
  }
  visit_dtype(dtype, [&]<class T>() {
    if constexpr (!std::is_same_v<T, bool>) {
      multiply(product, reinterpret_cast<const T*>(left), reinterpret_cast<const T*>(right),
               reinterpret_cast<T*>(result));
    }
  });
  if (result == out) return;
  const Sizes ordered_sizes = by_label(labels, sizes, order);
  copy_strided(dtype, {result, by_label(order, dense_strides(ordered_sizes), labels)}, sizes, out);
}

}  // namespace tessera::kernels
