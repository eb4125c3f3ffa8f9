// SPDX-License-Identifier: Apache-2.0
//
// Products of a build that found no cuBLASLt.
#include "compute/cuda/products.h"

namespace tessera::cuda {

Status Products::multiply(const Gemm& /*gemm*/, WorkspaceSource /*workspace*/, void* /*stream*/,
                          bool* /*is_done*/) {
  return absl::UnimplementedError(
      "this build has no cuBLASLt, which multiplies matrices on GPUs; install CUDA 12.1 or later "
      "with cublasLt.h in /usr/local/cuda or set $CUDA_HOME, and build again; or run on CPUs");
}

}  // namespace tessera::cuda
