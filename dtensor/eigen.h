// SPDX-License-Identifier: Apache-2.0
//
// Shards as Eigen tensors: what ShardView::eigen() needs. A header of its own, because Eigen's is
// slow to compile.
//
// Total: a map covers exactly the elements of the view. Where the view has another rank, or its
// shape was changed to another number of elements than its data, the map is empty; one of rank 0,
// which cannot be empty, then is of a zero that belongs to no tensor.
#ifndef TESSERA_DTENSOR_EIGEN_H_
#define TESSERA_DTENSOR_EIGEN_H_

#include <cstdint>
#include <type_traits>

#include "absl/types/span.h"
#include "base/shape.h"
#include "unsupported/Eigen/CXX11/Tensor"

namespace tessera::internal {

template <class T, int Rank>
struct EigenMap {
  using Value = std::remove_const_t<T>;
  using Tensor = Eigen::Tensor<Value, Rank, Eigen::RowMajor>;
  using Map = Eigen::TensorMap<std::conditional_t<std::is_const_v<T>, const Tensor, Tensor>>;

  static Map map(absl::Span<T> data, const Shape& shape) {
    Eigen::array<Eigen::Index, Rank> sizes = {};
    const bool fits =
        shape.size() == Rank && num_elements(shape) == static_cast<int64_t>(data.size());
    if (!fits) return {Rank == 0 ? no_element() : data.data(), sizes};
    for (int dim = 0; dim < Rank; ++dim) sizes[dim] = shape[dim];
    return {data.data(), sizes};
  }

 private:
  // Of each thread its own: a map that can be written is not shared.
  static Value* no_element() {
    static thread_local Value none;
    none = Value(0);
    return &none;
  }
};

}  // namespace tessera::internal

#endif  // TESSERA_DTENSOR_EIGEN_H_
