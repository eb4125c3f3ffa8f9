// SPDX-License-Identifier: Apache-2.0
//
// open_api() of a build that found no CUDA toolkit.
#include <memory>

#include "device/cuda/open_api.h"

namespace tessera::cuda {

StatusOr<std::shared_ptr<Api>> open_api() {
  return absl::UnimplementedError(
      "device_type kCuda is not in this build, which found no CUDA toolkit; install CUDA 12.1 or "
      "later (nvcc, cuda_runtime_api.h, libcudart_static.a) in /usr/local/cuda or set $CUDA_HOME, "
      "and build again; or use DeviceType::kCpu");
}

bool has_toolkit() { return false; }

}  // namespace tessera::cuda
