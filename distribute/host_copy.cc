// SPDX-License-Identifier: Apache-2.0
#include "distribute/host_copy.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/eigen.h"
#include "layout/layout.h"

namespace tessera::distribute::internal {

StatusOr<HostArray> to_host_array(const DTensor& tensor) {
  return visit_dtype(tensor.dtype(), [&]<class T>() -> StatusOr<HostArray> {
    TESSERA_ASSIGN_OR_RETURN(const HostTensor<T> host, tensor.to_host<T>());
    HostArray array = {.dtype = dtype_of<T>(), .shape = host.shape, .bytes = {}};
    array.bytes.resize(host.data.size() * sizeof(T));
    // Not by data(), which a vector of bool does not have.
    T* const out = reinterpret_cast<T*>(array.bytes.data());
    for (size_t i = 0; i < host.data.size(); ++i) out[i] = host.data[i];
    return array;
  });
}

DTensor to_tensor(const StatusOr<HostArray>& value, DType dtype, const Shape& shape,
                  const Mesh& mesh) {
  StatusOr<Layout> layout = Layout::replicated(mesh, static_cast<int>(shape.size()));
  if (!value.ok()) layout = value.status();
  return tessera::internal::from_host_raw(dtype, value.ok() ? value->bytes.data() : nullptr,
                                          value.ok() ? num_elements(shape) : 0, shape, layout);
}

}  // namespace tessera::distribute::internal
