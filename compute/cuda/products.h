// SPDX-License-Identifier: Apache-2.0
//
// Products: MathApi::multiply() of the toolkit, in builds with cuBLASLt and without.
#ifndef TESSERA_COMPUTE_CUDA_PRODUCTS_H_
#define TESSERA_COMPUTE_CUDA_PRODUCTS_H_

#include <mutex>

#include "base/status.h"
#include "compute/cuda/gemm.h"

namespace tessera::cuda {

class CublasLt;

// Thread-safe.
class Products {
 public:
  // Loads cuBLASLt before the first product. *is_done is false where it has no algorithm for this
  // one. Unimplemented, with what to install, where cuBLASLt is not there.
  Status multiply(const Gemm& gemm, WorkspaceSource workspace, void* stream, bool* is_done);

 private:
  std::mutex mutex_;  // guards what follows
  Status missing_;
  [[maybe_unused]] CublasLt* loaded_ = nullptr;  // stays, see CublasLt
};

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_CUDA_PRODUCTS_H_
