// SPDX-License-Identifier: Apache-2.0
//
// slab_source: memory of GPUs from NCCL's allocator, whose calls wait for no GPU.
#ifndef TESSERA_COLLECTIVES_NCCL_SLAB_SOURCE_H_
#define TESSERA_COLLECTIVES_NCCL_SLAB_SOURCE_H_

#include <memory>

#include "base/status.h"
#include "collectives/nccl/api.h"
#include "device/cuda/slab_pool.h"

namespace tessera::nccl {

// For the pools of a client in a job of several. It keeps the Api.
cuda::SlabSource slab_source(const std::shared_ptr<Api>& api);

// FailedPrecondition where the environment makes NCCL allocate by cudaMalloc() in a client of
// several GPUs ($NCCL_CUMEM_ENABLE=0): such an allocation waits for all of them, and a GPU may wait
// in NCCL for the GPU that allocates.
Status check_allocator(int num_gpus);

}  // namespace tessera::nccl

#endif  // TESSERA_COLLECTIVES_NCCL_SLAB_SOURCE_H_
