// SPDX-License-Identifier: Apache-2.0
#include "dtensor/dtensor.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "device/local_device.h"
#include "dtensor/tensor_rep.h"

namespace tessera {

const internal::TensorRep& DTensor::moved_from() {
  static const internal::TensorRep* const kNone = [] {
    auto* rep = new internal::TensorRep;
    rep->shape = Shape();
    rep->error = absl::FailedPreconditionError(
        "the tensor was moved from; use the tensor that it was moved to, or pass a copy");
    return rep;
  }();
  return *kNone;
}

// The error names no call: operations that have the tensor as an operand pass it on.
const internal::TensorRep& DTensor::empty() {
  static const internal::TensorRep* const kEmpty = [] {
    auto* rep = new internal::TensorRep;
    rep->shape = Shape();
    rep->error = absl::FailedPreconditionError(
        "the tensor is an empty DTensor; assign a value to the DTensor first");
    return rep;
  }();
  return *kEmpty;
}

// Points to the static contents, and owns nothing.
DTensor::DTensor() : rep_(std::shared_ptr<const void>(), &empty()) {}

bool DTensor::valid() const { return rep_ != nullptr && rep_.get() != &empty(); }

Status DTensor::error_of(absl::string_view function) const {
  if (rep_.get() != &empty()) return rep().error;
  return internal::empty_handle(absl::StrCat("DTensor::", function, "()"), "DTensor");
}

DType DTensor::dtype() const { return rep().dtype; }

const Shape& DTensor::shape() const { return rep().shape; }

const Layout& DTensor::layout() const {
  if (rep().layout.has_value()) return *rep().layout;
  static const Layout* const kNone =
      new Layout(*Layout::replicated(*Mesh::create({{"none", 1}}), 0));
  return *kNone;
}

Status DTensor::await() const {
  Status first = error_of("await");
  if (!rep().buffers.empty()) first.Update(rep().runtime->devices().check_may_wait("await"));
  if (!first.ok()) return first;
  for (size_t i = 0; i < rep().buffers.size(); ++i) first.Update(rep().await(*rep().buffers[i]));
  return first;
}

Status await_all(absl::Span<const DTensor> tensors) {
  Status first;
  for (const DTensor& tensor : tensors) first.Update(tensor.await());
  return first;
}

Status DTensor::status() const {
  Status first = error_of("status");
  for (const std::shared_ptr<const Buffer>& buffer : rep().buffers) {
    first.Update(buffer->ready().status());
  }
  return first;
}

std::string DTensor::explain() const {
  if (!rep().error.ok()) return absl::StrCat("failed: ", rep().error.message(), "\n");
  const std::string what = absl::StrCat(dtype_name(dtype()), " ", shape_to_string(shape()),
                                        " under ", layout().to_string_with_mesh());
  if (rep().explanation == nullptr) return absl::StrCat(what, ", made by no operation\n");
  return absl::StrCat(what, "\n", *rep().explanation);
}

int DTensor::num_local_shards() const { return static_cast<int>(rep().buffers.size()); }

Status DTensor::check_dtype(absl::string_view function, DType dtype) const {
  if (dtype == rep().dtype) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(function, "<", dtype_name(dtype),
                                                 "> of a tensor of ", dtype_name(rep().dtype),
                                                 "; read it as its own dtype"));
}

StatusOr<internal::RawShard> DTensor::raw_shard(int local_device, DType dtype) const {
  TESSERA_RETURN_IF_ERROR(error_of("shard"));
  TESSERA_RETURN_IF_ERROR(check_dtype("shard", dtype));
  TESSERA_RETURN_IF_ERROR(rep().check_shard("shard", local_device));
  const std::shared_ptr<const Buffer>& buffer = rep().buffers[local_device];
  const MeshDevice& device = rep().devices[local_device];
  std::shared_ptr<const Buffer> on_host = rep().runtime->device(device.ordinal).host_copy(buffer);
  TESSERA_RETURN_IF_ERROR(rep().await(*on_host));
  const std::byte* const data = on_host->data();
  return internal::RawShard{rep().box_of(device), data, std::move(on_host)};
}

}  // namespace tessera
