// SPDX-License-Identifier: Apache-2.0
//
// Products of a build with cuBLASLt.
#include <memory>
#include <mutex>

#include "compute/cuda/cublaslt.h"
#include "compute/cuda/products.h"

namespace tessera::cuda {

Status Products::multiply(const Gemm& gemm, WorkspaceSource workspace, void* stream,
                          bool* is_done) {
  CublasLt* lt = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (loaded_ == nullptr && missing_.ok()) {
      StatusOr<std::unique_ptr<CublasLt>> loaded = CublasLt::load();
      missing_ = loaded.status();
      if (loaded.ok()) loaded_ = loaded->release();
    }
    TESSERA_RETURN_IF_ERROR(missing_);
    lt = loaded_;
  }
  return lt->multiply(gemm, workspace, stream, is_done);
}

}  // namespace tessera::cuda
