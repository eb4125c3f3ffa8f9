// SPDX-License-Identifier: Apache-2.0
#include "servers/host_copy.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/to_host.h"
#include "layout/layout.h"

namespace tessera::distribute::internal {

StatusOr<HostArray> to_host_array(const DTensor& tensor) {
  TESSERA_ASSIGN_OR_RETURN(const tessera::internal::RawShard whole,
                           tessera::internal::to_host_raw(tensor));
  const int64_t size = num_bytes(tensor.shape(), tensor.dtype());
  return HostArray{.dtype = tensor.dtype(),
                   .shape = tensor.shape(),
                   .bytes = std::vector<std::byte>(whole.data, whole.data + size)};
}

DTensor to_tensor(const StatusOr<TensorBytes>& value, DType dtype, const Shape& shape,
                  const Mesh& mesh) {
  StatusOr<Layout> layout = Layout::replicated(mesh, static_cast<int>(shape.size()));
  if (!value.ok()) {
    layout = value.status();
  } else if (value->size() != num_bytes(shape, dtype)) {
    layout = absl::InternalError(absl::StrCat(
        "the parameter servers have sent ", value->size(), " bytes of a tensor ", dtype_name(dtype),
        " ", shape_to_string(shape), ", which has ", num_bytes(shape, dtype)));
  }
  // Calls the function once, as all devices have the whole tensor.
  return tessera::internal::from_function_raw(
      dtype, shape, layout, [&](const Box&, std::byte* out) { value->copy_to(out); });
}

}  // namespace tessera::distribute::internal
