// SPDX-License-Identifier: Apache-2.0
//
// GpuMath on the GPUs of this machine: products by cuBLASLt, and the kernels of digits_kernels.cu.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "examples/digits_gpu/cublaslt_functions.h"
#include "examples/digits_gpu/gpu_math.h"

namespace tessera::examples {
namespace {

Status status_of(cudaError_t error, absl::string_view function) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();  // an error that is not sticky must not appear at the next launch
  const bool is_missing = error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ||
                          error == cudaErrorInitializationError;
  return Status(is_missing ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kInternal,
                absl::StrCat(function, ": ", cudaGetErrorString(error)));
}

// An address is a multiple of this; cuBLASLt asks for no more than 256.
uint32_t alignment_of(const float* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return static_cast<uint32_t>((address | 256) & ~((address | 256) - 1));
}

// The description of one product for cuBLASLt: values of the host that the library makes and
// destroys.
class Description {
 public:
  explicit Description(const CublasLtFunctions& lt) : lt_(lt) {}
  ~Description() {
    if (product != nullptr) lt_.cublasLtMatmulDescDestroy(product);
    for (const cublasLtMatrixLayout_t layout : {a, b, d}) {
      if (layout != nullptr) lt_.cublasLtMatrixLayoutDestroy(layout);
    }
    if (preference != nullptr) lt_.cublasLtMatmulPreferenceDestroy(preference);
  }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;

  Status fill(const Gemm& gemm) {
    // In f32 throughout, not in the shorter types of tensor cores.
    TESSERA_CUBLASLT_CALL(lt_, cublasLtMatmulDescCreate, &product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    TESSERA_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSA, gemm.transpose_a));
    TESSERA_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSB, gemm.transpose_b));
    // Layouts are of the matrices as they are stored, before they are transposed.
    TESSERA_RETURN_IF_ERROR(create_layout(&a, gemm.transpose_a, gemm.m, gemm.k, gemm.lda));
    TESSERA_RETURN_IF_ERROR(create_layout(&b, gemm.transpose_b, gemm.k, gemm.n, gemm.ldb));
    TESSERA_RETURN_IF_ERROR(create_layout(&d, false, gemm.m, gemm.n, gemm.ldd));
    // No workspace, which is the default, and terms that are added in one sequence: so products
    // need no memory, and give the same bits each time.
    TESSERA_CUBLASLT_CALL(lt_, cublasLtMatmulPreferenceCreate, &preference);
    const std::pair<cublasLtMatmulPreferenceAttributes_t, uint32_t> attributes[] = {
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_NONE},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(gemm.a)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(gemm.b)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(gemm.d)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(gemm.d)}};
    for (const auto& [attribute, value] : attributes) {
      TESSERA_CUBLASLT_CALL(lt_, cublasLtMatmulPreferenceSetAttribute, preference, attribute,
                            &value, sizeof value);
    }
    return absl::OkStatus();
  }

  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;

 private:
  Status set(cublasLtMatmulDescAttributes_t attribute, bool transpose) const {
    const cublasOperation_t value = transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
    TESSERA_CUBLASLT_CALL(lt_, cublasLtMatmulDescSetAttribute, product, attribute, &value,
                          sizeof value);
    return absl::OkStatus();
  }
  Status create_layout(cublasLtMatrixLayout_t* layout, bool transpose, int64_t rows, int64_t cols,
                       int64_t ld) const {
    if (transpose) std::swap(rows, cols);
    TESSERA_CUBLASLT_CALL(lt_, cublasLtMatrixLayoutCreate, layout, CUDA_R_32F,
                          static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), ld);
    return absl::OkStatus();
  }

  const CublasLtFunctions& lt_;
};

class CublasLt : public GpuMath {
 public:
  explicit CublasLt(const CublasLtFunctions& functions) : lt_(functions) {}

  // The last owner may be a thread that works on a GPU.
  ~CublasLt() override {
    int before = 0;
    if (cudaGetDevice(&before) != cudaSuccess) return;
    for (const auto& [gpu, handle] : handles_) {
      if (cudaSetDevice(gpu) == cudaSuccess) lt_.cublasLtDestroy(handle);
    }
    cudaSetDevice(before);
  }

 private:
  Status run_gemm(const Gemm& gemm, void* stream) override {
    Description as(lt_);
    TESSERA_RETURN_IF_ERROR(as.fill(gemm));
    TESSERA_ASSIGN_OR_RETURN(const cublasLtHandle_t handle, handle_of_current_gpu());
    // The library remembers its choice for a description.
    cublasLtMatmulHeuristicResult_t chosen = {};
    int num_chosen = 0;
    TESSERA_CUBLASLT_CALL(lt_, cublasLtMatmulAlgoGetHeuristic, handle, as.product, as.a, as.b, as.d,
                          as.d, as.preference, 1, &chosen, &num_chosen);
    if (num_chosen == 0 || chosen.state != CUBLAS_STATUS_SUCCESS) {
      return absl::UnimplementedError(absl::StrCat("cuBLASLt has no algorithm for a product of ",
                                                   gemm.m, " x ", gemm.n, " elements of ", gemm.k,
                                                   " terms"));
    }
    const float alpha = 1.0f;
    const float beta = 0.0f;  // d is not read
    TESSERA_CUBLASLT_CALL(lt_, cublasLtMatmul, handle, as.product, &alpha, gemm.a, as.a, gemm.b,
                          as.b, &beta, gemm.d, as.d, gemm.d, as.d, &chosen.algo, nullptr, 0,
                          static_cast<cudaStream_t>(stream));
    return absl::OkStatus();
  }

  Status run_kernel(const DigitsKernel& kernel, void* stream) override {
    const int error = std::visit(
        [stream](const auto& values) { return launch_digits_kernel(values, stream); }, kernel);
    return status_of(static_cast<cudaError_t>(error), "the launch of a kernel");
  }

  // A handle belongs to a GPU, and all threads may use it.
  StatusOr<cublasLtHandle_t> handle_of_current_gpu() {
    int gpu = 0;
    TESSERA_RETURN_IF_ERROR(status_of(cudaGetDevice(&gpu), "cudaGetDevice"));
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = handles_.find(gpu);
    if (it != handles_.end()) return it->second;
    cublasLtHandle_t handle = nullptr;
    TESSERA_CUBLASLT_CALL(lt_, cublasLtCreate, &handle);
    handles_[gpu] = handle;
    return handle;
  }

  const CublasLtFunctions lt_;
  std::mutex mutex_;  // guards handles_
  std::map<int, cublasLtHandle_t> handles_;
};

}  // namespace

StatusOr<std::shared_ptr<GpuMath>> open_gpu_math(const std::string& cublaslt) {
  TESSERA_ASSIGN_OR_RETURN(const CublasLtFunctions functions, load_cublaslt(cublaslt));
  return std::make_shared<CublasLt>(functions);
}

bool has_cublaslt() { return true; }

}  // namespace tessera::examples
