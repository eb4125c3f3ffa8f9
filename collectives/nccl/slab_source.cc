// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/slab_source.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tessera::nccl {

cuda::SlabSource slab_source(const std::shared_ptr<Api>& api) {
  return {.allocate = [api](uint64_t size_bytes) { return api->mem_alloc(size_bytes); },
          .free = [api](std::byte* slab) { return api->mem_free(slab); },
          .granularity = int64_t{2} << 20};
}

Status check_allocator(int num_gpus) {
  const char* const value = std::getenv("NCCL_CUMEM_ENABLE");
  if (num_gpus < 2 || value == nullptr || absl::string_view(value) != "0") return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "NCCL_CUMEM_ENABLE=0 with ", num_gpus,
      " GPUs in a client: NCCL would allocate by cudaMalloc, which waits for all of them and can "
      "deadlock; unset it, or start a client for each GPU"));
}

}  // namespace tessera::nccl
