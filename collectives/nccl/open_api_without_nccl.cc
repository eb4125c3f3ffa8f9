// SPDX-License-Identifier: Apache-2.0
//
// open_api() of a build that found no NCCL.
#include <memory>
#include <string>

#include "collectives/nccl/open_api.h"

namespace tessera::nccl {

StatusOr<std::shared_ptr<Api>> open_api(const std::string& /*library*/) {
  return absl::UnimplementedError(
      "this build has no NCCL; install CUDA 12 or later with NCCL 2.28.7 or later, set CUDA_HOME "
      "and NCCL_HOME to them where they are not in their usual places, and build again");
}

bool has_nccl() { return false; }

}  // namespace tessera::nccl
