// SPDX-License-Identifier: Apache-2.0
//
// Between tensors on devices and arrays of the host.
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

// The whole value. Collective over the clients of the tensor's mesh.
StatusOr<HostArray> to_host_array(const DTensor& tensor);
// `value` replicated over the mesh, or its error as a tensor of this dtype and shape; Internal
// where it has another size.
DTensor to_tensor(const StatusOr<TensorBytes>& value, DType dtype, const Shape& shape,
                  const Mesh& mesh);

}  // namespace tessera::distribute::internal

#endif  // TESSERA_SERVERS_HOST_COPY_H_
