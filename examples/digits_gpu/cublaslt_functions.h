// SPDX-License-Identifier: Apache-2.0
//
// The functions of cuBLASLt that products need. No program links the library, which has 500 MB: it
// is loaded when a program multiplies on a GPU.
//
//   TESSERA_ASSIGN_OR_RETURN(const CublasLtFunctions lt, load_cublaslt());
//   cublasLtHandle_t handle = nullptr;
//   TESSERA_CUBLASLT_CALL(lt, cublasLtCreate, &handle);
//
// Only in builds with a CUDA toolkit that has cublasLt.h.
#ifndef TESSERA_EXAMPLES_DIGITS_GPU_CUBLASLT_FUNCTIONS_H_
#define TESSERA_EXAMPLES_DIGITS_GPU_CUBLASLT_FUNCTIONS_H_

#include <cublasLt.h>

#include <string>

#include "absl/strings/string_view.h"
#include "tessera.h"

namespace tessera::examples {

// By the names that the library exports. X(name).
#define TESSERA_CUBLASLT_FUNCTIONS(X)     \
  X(cublasLtGetStatusString)              \
  X(cublasLtCreate)                       \
  X(cublasLtDestroy)                      \
  X(cublasLtMatmulDescCreate)             \
  X(cublasLtMatmulDescSetAttribute)       \
  X(cublasLtMatmulDescDestroy)            \
  X(cublasLtMatrixLayoutCreate)           \
  X(cublasLtMatrixLayoutDestroy)          \
  X(cublasLtMatmulPreferenceCreate)       \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatmulPreferenceDestroy)      \
  X(cublasLtMatmulAlgoGetHeuristic)       \
  X(cublasLtMatmul)

struct CublasLtFunctions {
#define TESSERA_CUBLASLT_MEMBER(name) decltype(&::name) name = nullptr;
  TESSERA_CUBLASLT_FUNCTIONS(TESSERA_CUBLASLT_MEMBER)
#undef TESSERA_CUBLASLT_MEMBER

  // The error that the function reported, with its name.
  Status status_of(cublasStatus_t status, absl::string_view function) const;
};

// Loads the system's library of the toolkit's version, or another one; it stays loaded, for it has
// memory and threads of its own. Unimplemented, with what to install, where it is not there.
StatusOr<CublasLtFunctions> load_cublaslt(const std::string& library = "");

// Calls a function, and returns from the enclosing one with the error that it reports, if any.
#define TESSERA_CUBLASLT_CALL(lt, function, ...) \
  TESSERA_RETURN_IF_ERROR((lt).status_of((lt).function(__VA_ARGS__), #function))

}  // namespace tessera::examples

#endif  // TESSERA_EXAMPLES_DIGITS_GPU_CUBLASLT_FUNCTIONS_H_
