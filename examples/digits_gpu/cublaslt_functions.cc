// SPDX-License-Identifier: Apache-2.0
#include "examples/digits_gpu/cublaslt_functions.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace tessera::examples {
namespace {

Status missing(absl::string_view what) {
  constexpr int kMajor = CUDART_VERSION / 1000;
  constexpr int kMinor = CUDART_VERSION % 1000 / 10;
  return absl::UnimplementedError(
      absl::StrCat(what, "; matrix products on GPUs need cuBLASLt of CUDA ", kMajor,
                   ": install it (cuda-libraries-", kMajor, "-", kMinor,
                   ", or the toolkit), or set LD_LIBRARY_PATH to where it is; or run on CPUs"));
}

absl::StatusCode code_of(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_ALLOC_FAILED:
      return absl::StatusCode::kResourceExhausted;
    case CUBLAS_STATUS_NOT_INITIALIZED:
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return absl::StatusCode::kFailedPrecondition;
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return absl::StatusCode::kUnimplemented;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

StatusOr<CublasLtFunctions> load_cublaslt(const std::string& library) {
  const std::string file =
      library.empty() ? absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR) : library;
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return missing(absl::StrCat("no cuBLASLt: ", dlerror()));
  CublasLtFunctions functions;
#define TESSERA_CUBLASLT_LOAD(name)                                                  \
  functions.name = reinterpret_cast<decltype(functions.name)>(dlsym(handle, #name)); \
  if (functions.name == nullptr) return missing(absl::StrCat(file, " has no ", #name));
  TESSERA_CUBLASLT_FUNCTIONS(TESSERA_CUBLASLT_LOAD)
#undef TESSERA_CUBLASLT_LOAD
  return functions;
}

Status CublasLtFunctions::status_of(cublasStatus_t status, absl::string_view function) const {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return Status(code_of(status), absl::StrCat(function, ": ", cublasLtGetStatusString(status)));
}

}  // namespace tessera::examples
