// SPDX-License-Identifier: Apache-2.0
//
// Shards as Eigen tensors: the implementation of ShardView::eigen(). A separate header, because
// Eigen's is slow to compile.
//
// A map covers exactly the elements of its view. A map of another rank than the view's does not
// exist, and neither does a map of a view whose shape was changed to another number of elements
// than its data. In a function of local_map() such a request is an error of the function, which
// gets a map of memory that belongs to no tensor. Elsewhere eigen() throws std::invalid_argument.
//
// An assignment of a tensor of another shape, which Eigen does not check, is an error of the
// function as well, and writes nothing.
#ifndef TESSERA_DTENSOR_EIGEN_H_
#define TESSERA_DTENSOR_EIGEN_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "absl/types/span.h"
#include "base/public.h"
#include "base/shape.h"
#include "dtensor/dtensor.h"
#include "unsupported/Eigen/CXX11/Tensor"

namespace TESSERA_PUBLIC tessera {
namespace internal {

// Reports that a map of this rank was requested, and returns memory for as many elements as the
// largest of the call's tensors, zeros at first. Throws where no function runs.
std::byte* refuse_map(const ViewOrigin& origin, const Shape& shape, size_t num_elements, int rank);
// Reports that a tensor of shape `from` was assigned to a map of shape `to`.
void refuse_assignment(const ViewOrigin& origin, const Shape& to, const Shape& from);

// A TensorMap that takes no assignment of another shape.
template <class Tensor>
class AssignableMap : public Eigen::TensorMap<Tensor> {
  using Base = Eigen::TensorMap<Tensor>;

 public:
  using Nested = const AssignableMap&;

  AssignableMap(typename Tensor::Scalar* data, const typename Tensor::Dimensions& sizes,
                ViewOrigin origin)
      : Base(data, sizes), origin_(std::move(origin)) {}
  AssignableMap(const AssignableMap&) = default;

  // Expressions take an operand by this function.
  const AssignableMap& derived() const { return *this; }

  template <class Values>
  AssignableMap& operator=(const Values& values) {
    if (takes(values)) Base::operator=(values);
    return *this;
  }
  AssignableMap& operator=(const AssignableMap& values) {
    if (takes(values.base())) Base::operator=(values.base());
    return *this;
  }
  template <class Values>
  AssignableMap& operator+=(const Values& values) {
    if (takes(values)) Base::operator=(base() + values);
    return *this;
  }
  template <class Values>
  AssignableMap& operator-=(const Values& values) {
    if (takes(values)) Base::operator=(base() - values);
    return *this;
  }
  template <class Values>
  AssignableMap& operator*=(const Values& values) {
    if (takes(values)) Base::operator=(base() * values);
    return *this;
  }
  template <class Values>
  AssignableMap& operator/=(const Values& values) {
    if (takes(values)) Base::operator=(base() / values);
    return *this;
  }

 private:
  const Base& base() const { return *this; }

  template <class Dimensions>
  static Shape shape_of(const Dimensions& sizes) {
    Shape shape(Eigen::internal::array_size<Dimensions>::value);
    for (size_t dim = 0; dim < shape.size(); ++dim) shape[dim] = sizes[dim];
    return shape;
  }
  template <class Values>
  bool takes(const Values& values) const {
    const Eigen::DefaultDevice device;
    const Shape from = shape_of(
        Eigen::TensorEvaluator<const Values, Eigen::DefaultDevice>(values, device).dimensions());
    const Shape to = shape_of(this->dimensions());
    if (from == to) return true;
    refuse_assignment(origin_, to, from);
    return false;
  }

  ViewOrigin origin_;
};

template <class T, int Rank>
struct EigenMap {
  using Value = std::remove_const_t<T>;
  using Tensor = Eigen::Tensor<Value, Rank, Eigen::RowMajor>;
  using Sizes = typename Tensor::Dimensions;
  using Map =
      std::conditional_t<std::is_const_v<T>, Eigen::TensorMap<const Tensor>, AssignableMap<Tensor>>;

  static Map map(absl::Span<T> data, const Shape& shape, const ViewOrigin& origin) {
    const bool is_whole = num_elements(shape) == static_cast<int64_t>(data.size());
    Sizes sizes;
    if (is_whole && shape.size() == Rank) {
      for (int dim = 0; dim < Rank; ++dim) sizes[dim] = shape[dim];
      return make(data.data(), sizes, origin);
    }
    std::byte* const memory = refuse_map(origin, shape, data.size(), Rank);
    const bool has_elements = is_whole && memory != nullptr;
    for (int dim = 0; dim < Rank; ++dim) sizes[dim] = has_elements ? 1 : 0;
    // The last dim has the product of the remaining dims.
    for (size_t dim = 0; Rank > 0 && has_elements && dim < shape.size(); ++dim) {
      sizes[std::min<size_t>(dim, Rank - 1)] *= shape[dim];
    }
    return make(reinterpret_cast<T*>(memory), sizes, origin);
  }

 private:
  static Map make(T* data, const Sizes& sizes, const ViewOrigin& origin) {
    if constexpr (std::is_const_v<T>) {
      return Map(data, sizes);
    } else {
      return Map(data, sizes, origin);
    }
  }
};

}  // namespace internal
}  // namespace tessera

// An AssignableMap in an expression is the TensorMap that it is made of.
namespace Eigen::internal {

template <class Tensor>
struct traits<tessera::internal::AssignableMap<Tensor>> : traits<TensorMap<Tensor>> {};
template <class Tensor>
struct eval<tessera::internal::AssignableMap<Tensor>, Eigen::Dense> {
  using type = const tessera::internal::AssignableMap<Tensor>&;
};
template <class Tensor>
struct nested<tessera::internal::AssignableMap<Tensor>> {
  using type = const tessera::internal::AssignableMap<Tensor>&;
};

}  // namespace Eigen::internal

#endif  // TESSERA_DTENSOR_EIGEN_H_
