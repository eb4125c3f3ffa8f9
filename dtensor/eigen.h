// SPDX-License-Identifier: Apache-2.0
//
// Shards as Eigen tensors: what ShardView::eigen() needs. Kept apart, for the header is heavy.
#ifndef TESSERA_DTENSOR_EIGEN_H_
#define TESSERA_DTENSOR_EIGEN_H_

#include "base/check.h"
#include "base/shape.h"
#include "unsupported/Eigen/CXX11/Tensor"

namespace tessera::internal {

template <int Rank>
Eigen::array<Eigen::Index, Rank> eigen_sizes(const Shape& shape) {
  TESSERA_CHECK(shape.size() == Rank, "eigen<Rank>() of a shard of that rank");
  Eigen::array<Eigen::Index, Rank> sizes;
  for (int dim = 0; dim < Rank; ++dim) sizes[dim] = shape[dim];
  return sizes;
}

template <class T, int Rank>
struct EigenMap {
  static Eigen::TensorMap<const Eigen::Tensor<T, Rank, Eigen::RowMajor>> map(const T* data,
                                                                             const Shape& shape) {
    return {data, eigen_sizes<Rank>(shape)};
  }
  static Eigen::TensorMap<Eigen::Tensor<T, Rank, Eigen::RowMajor>> map_mutable(T* data,
                                                                               const Shape& shape) {
    return {data, eigen_sizes<Rank>(shape)};
  }
};

}  // namespace tessera::internal

#endif  // TESSERA_DTENSOR_EIGEN_H_
