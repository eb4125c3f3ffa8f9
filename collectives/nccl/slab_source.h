// SPDX-License-Identifier: Apache-2.0
//
// slab_source: memory of GPUs from NCCL's allocator, which communicators can register.
#ifndef TESSERA_COLLECTIVES_NCCL_SLAB_SOURCE_H_
#define TESSERA_COLLECTIVES_NCCL_SLAB_SOURCE_H_

#include <memory>

#include "base/status.h"
#include "collectives/nccl/api.h"
#include "device/cuda/slab_pool.h"

namespace tessera::nccl {

// For the pools of a client in a job of several. It keeps the Api.
cuda::SlabSource slab_source(const std::shared_ptr<Api>& api);

// Whether the program's user wants NCCL to use memory of tensors directly
// ($TESSERA_NCCL_REGISTER=1). Off otherwise: NCCL 2.28.9 to 2.30.7 use freed memory when they abort
// a communicator with registered memory that others reach by NVLink.
bool is_registration_asked_for();

// FailedPrecondition where the environment makes NCCL allocate by cudaMalloc() in a client of
// several GPUs ($NCCL_CUMEM_ENABLE=0): that waits for all of them, one of which may wait in NCCL
// for the GPU that allocates.
Status check_allocator(int num_gpus);

}  // namespace tessera::nccl

#endif  // TESSERA_COLLECTIVES_NCCL_SLAB_SOURCE_H_
