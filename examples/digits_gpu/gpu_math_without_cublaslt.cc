// SPDX-License-Identifier: Apache-2.0
//
// open_gpu_math() of a build that found no CUDA toolkit, or one without cuBLASLt.
#include <memory>
#include <string>

#include "examples/digits_gpu/gpu_math.h"

namespace tessera::examples {

StatusOr<std::shared_ptr<GpuMath>> open_gpu_math(const std::string& /*cublaslt*/) {
  return absl::UnimplementedError(
      "this build has no cuBLASLt, which multiplies matrices on GPUs; install CUDA 12.1 or later "
      "with cublasLt.h in /usr/local/cuda or set $CUDA_HOME, and build again; or run on CPUs");
}

bool has_cublaslt() { return false; }

}  // namespace tessera::examples
