// SPDX-License-Identifier: Apache-2.0
//
// slab_source: memory of GPUs from NCCL's allocator, which communicators can register.
#ifndef TESSERA_COLLECTIVES_NCCL_SLAB_SOURCE_H_
#define TESSERA_COLLECTIVES_NCCL_SLAB_SOURCE_H_

#include <memory>

#include "collectives/nccl/api.h"
#include "device/cuda/slab_pool.h"

namespace tessera::nccl {

// For the pools of a client in a job of several. It keeps the Api.
cuda::SlabSource slab_source(const std::shared_ptr<Api>& api);

}  // namespace tessera::nccl

#endif  // TESSERA_COLLECTIVES_NCCL_SLAB_SOURCE_H_
