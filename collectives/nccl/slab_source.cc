// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/slab_source.h"

#include <cstddef>
#include <cstdint>

namespace tessera::nccl {

cuda::SlabSource slab_source(const std::shared_ptr<Api>& api) {
  return {.allocate = [api](uint64_t size_bytes) { return api->mem_alloc(size_bytes); },
          .free = [api](std::byte* slab) { return api->mem_free(slab); },
          .granularity = int64_t{2} << 20};
}

}  // namespace tessera::nccl
