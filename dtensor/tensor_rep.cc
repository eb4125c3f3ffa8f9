// SPDX-License-Identifier: Apache-2.0
#include "dtensor/tensor_rep.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "mesh/mesh_runtime.h"

namespace tessera::internal {

std::shared_ptr<const Buffer> TensorRep::buffer_of(int ordinal) const {
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (devices[i].ordinal == ordinal) return buffers[i];
  }
  return nullptr;
}

Status TensorRep::check_shard(absl::string_view function, int local_device) const {
  TESSERA_RETURN_IF_ERROR(error);
  const int count = static_cast<int>(buffers.size());
  if (local_device < 0 || local_device >= count) {
    return absl::InvalidArgumentError(
        count == 0
            ? absl::StrCat(function, "(", local_device, "): client ", runtime->job().client_id(),
                           " holds no shard of a tensor on ", layout->mesh().to_string())
            : absl::StrCat(function, "(", local_device,
                           ") is out of range; this client holds shards 0 to ", count - 1));
  }
  return runtime->devices().check_may_wait(function);
}

Status TensorRep::await(const Buffer& buffer) const {
  // The op that fills it may run on this thread, unless other devices of it wait for this thread.
  if (!buffer.ready().done() && devices.size() == 1) {
    runtime->device(devices[0].ordinal).stream().run_here(&buffer.filled());
  }
  return buffer.ready().wait();
}

StatusOr<std::shared_ptr<TensorRep>> new_tensor(DType dtype, Shared<Shape> shape,
                                                const StatusOr<Layout>& layout) {
  TESSERA_RETURN_IF_ERROR(layout.status());
  auto runtime = std::dynamic_pointer_cast<Runtime>(internal::runtime_of(layout->mesh()));
  if (runtime == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("mesh ", layout->mesh().to_string(),
                     " is abstract: no devices stand behind it; make it with create_mesh(client, "
                     "...) to hold tensors"));
  }
  TESSERA_RETURN_IF_ERROR(runtime->turns().check_open());
  TESSERA_RETURN_IF_ERROR(layout->validate_shape(*shape));
  TESSERA_RETURN_IF_ERROR(validate_shape(*shape, dtype));
  if (layout->is_partial()) {
    TESSERA_RETURN_IF_ERROR(with_context(validate_reduction(*layout->partial_op(), dtype),
                                         absl::StrCat("layout ", layout->to_string())));
  }
  auto rep = std::make_shared<TensorRep>();
  rep->dtype = dtype;
  rep->shape = std::move(shape);
  rep->layout = *layout;
  rep->devices = devices_in(layout->mesh(), runtime->devices().local());
  rep->runtime = std::move(runtime);
  return rep;
}

bool holds_value(const Layout& layout, int64_t position) {
  if (!layout.is_partial()) return true;
  const ReduceOp op = *layout.partial_op();
  return (op != ReduceOp::kSum && op != ReduceOp::kProd) || layout.partial_index(position) == 0;
}

}  // namespace tessera::internal
