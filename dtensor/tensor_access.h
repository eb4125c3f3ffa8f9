// SPDX-License-Identifier: Apache-2.0
//
// TensorAccess: from a DTensor to its TensorRep and back. Internal to dtensor/.
#ifndef TESSERA_DTENSOR_TENSOR_ACCESS_H_
#define TESSERA_DTENSOR_TENSOR_ACCESS_H_

#include <memory>
#include <utility>

#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/dtensor.h"
#include "dtensor/tensor_rep.h"
#include "layout/layout.h"

namespace tessera::internal {

// Access to a tensor for the other parts of dtensor/, not for users.
struct TensorAccess {
  static DTensor make(std::shared_ptr<const TensorRep> rep) { return DTensor(std::move(rep)); }
  static DTensor make(TensorRep rep) {
    return make(std::make_shared<const TensorRep>(std::move(rep)));
  }
  // A tensor that carries only an error.
  static DTensor failed(DType dtype, const Shape& shape, const StatusOr<Layout>& layout,
                        Status error) {
    auto rep = std::make_shared<TensorRep>();
    rep->dtype = dtype;
    rep->shape = shape;
    if (layout.ok()) rep->layout = *layout;
    rep->error = std::move(error);
    return make(std::move(rep));
  }
  static const TensorRep& rep(const DTensor& tensor) { return tensor.rep(); }
  // The tensor's error, which names `call` for an empty tensor.
  static Status error_of(absl::string_view call, const DTensor& tensor) {
    if (&tensor.rep() == &DTensor::empty()) return empty_handle(call, "DTensor");
    return tensor.rep().error;
  }
  static StatusOr<RawShard> raw_shard(const DTensor& tensor, int local_device) {
    return tensor.raw_shard(local_device, tensor.dtype());
  }
  static StatusOr<RawShard> raw_to_host(const DTensor& tensor,
                                        absl::string_view function = "to_host") {
    return tensor.raw_to_host(tensor.dtype(), function);
  }
  // Whether there are other handles of the same tensor. Handles that other threads make or drop
  // meanwhile may count or not.
  static bool has_copies(const DTensor& tensor) { return tensor.rep_.use_count() > 1; }
};

}  // namespace tessera::internal

#endif  // TESSERA_DTENSOR_TENSOR_ACCESS_H_
