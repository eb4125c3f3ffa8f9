// SPDX-License-Identifier: Apache-2.0
//
// CublasLt: products of matrices by cuBLASLt. No program links the library, which has 500 MB: it is
// loaded when a program multiplies on a GPU.
//
// A sum that is long for its result is split: parts go to a workspace of up to 32 MiB and are added
// in a separate step, so that a product gives the same bits each time. Only in builds with a CUDA
// toolkit that has cublasLt.h.
#ifndef TESSERA_COMPUTE_CUDA_CUBLASLT_H_
#define TESSERA_COMPUTE_CUDA_CUBLASLT_H_

#include <cublasLt.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "compute/cuda/gemm.h"

namespace tessera::cuda {

// By the names that the library exports. X(name).
#define TESSERA_CUBLASLT_FUNCTIONS(X)     \
  X(cublasLtGetStatusString)              \
  X(cublasLtCreate)                       \
  X(cublasLtDestroy)                      \
  X(cublasLtMatmulDescCreate)             \
  X(cublasLtMatmulDescSetAttribute)       \
  X(cublasLtMatmulDescDestroy)            \
  X(cublasLtMatrixLayoutCreate)           \
  X(cublasLtMatrixLayoutSetAttribute)     \
  X(cublasLtMatrixLayoutDestroy)          \
  X(cublasLtMatmulPreferenceCreate)       \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatmulPreferenceDestroy)      \
  X(cublasLtMatmulAlgoGetHeuristic)       \
  X(cublasLtMatmul)

// Thread-safe. Never destroyed once loaded: the library has memory and threads of its own.
class CublasLt {
 public:
  // Loads the system's library of the toolkit's version, or another one. Unimplemented, with what
  // to install, where it is not there.
  static StatusOr<std::unique_ptr<CublasLt>> load(const std::string& library = "");

  // Gives a stream of the current GPU the product. *has_algorithm is false where the library has
  // none for it; then nothing was given. A product whose algorithm gets no workspace, because there
  // is no more memory, is computed by another one. For f16, bf16, f32 and f64.
  Status multiply(const Gemm& gemm, WorkspaceSource workspace, void* stream, bool* has_algorithm);

 private:
  friend class GemmDescription;
  CublasLt() = default;
  Status status_of(cublasStatus_t status, absl::string_view function) const;
  // A handle belongs to a GPU, and all threads may use it.
  StatusOr<cublasLtHandle_t> handle_of_current_gpu();

#define TESSERA_CUBLASLT_MEMBER(name) decltype(&::name) name##_ = nullptr;
  TESSERA_CUBLASLT_FUNCTIONS(TESSERA_CUBLASLT_MEMBER)
#undef TESSERA_CUBLASLT_MEMBER
  std::mutex mutex_;  // guards handles_
  std::map<int, cublasLtHandle_t> handles_;
};

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_CUDA_CUBLASLT_H_
