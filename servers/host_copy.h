// SPDX-License-Identifier: Apache-2.0
//
// Copies between tensors on devices and arrays on the host.
#ifndef TESSERA_SERVERS_HOST_COPY_H_
#define TESSERA_SERVERS_HOST_COPY_H_

#include "base/dtype.h"
#include "base/host_array.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/dtensor.h"
#include "mesh/mesh.h"
#include "servers/tensor_message.h"

namespace tessera::distribute::internal {

// Copies the whole value. Collective over the clients of the tensor's mesh.
StatusOr<HostArray> to_host_array(const DTensor& tensor);
// A tensor with `value` replicated over the mesh, or with the error of `value`. Internal for a
// value of another size.
DTensor to_tensor(const StatusOr<TensorBytes>& value, DType dtype, const Shape& shape,
                  const Mesh& mesh);

}  // namespace tessera::distribute::internal

#endif  // TESSERA_SERVERS_HOST_COPY_H_
