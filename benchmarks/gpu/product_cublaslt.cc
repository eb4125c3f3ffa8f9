// SPDX-License-Identifier: Apache-2.0
//
// The product by cuBLASLt.

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "benchmarks/gpu/product.h"
#include "examples/digits_gpu/cublaslt_functions.h"

namespace tessera::benchmarks {
namespace {

// The size that NVIDIA recommends on Hopper.
constexpr uint64_t kWorkspaceBytes = uint64_t{32} << 20;

class CublasLtProduct : public Product {
 public:
  CublasLtProduct(const examples::CublasLtFunctions& functions, cuda::Api& api)
      : lt_(functions), api_(api) {}
  ~CublasLtProduct() override {
    if (preference_ != nullptr) lt_.cublasLtMatmulPreferenceDestroy(preference_);
    if (matrix_ != nullptr) lt_.cublasLtMatrixLayoutDestroy(matrix_);
    if (product_ != nullptr) lt_.cublasLtMatmulDescDestroy(product_);
    if (handle_ != nullptr) lt_.cublasLtDestroy(handle_);
    if (workspace_ != nullptr) api_.free(workspace_).IgnoreError();
  }
  CublasLtProduct(const CublasLtProduct&) = delete;
  CublasLtProduct& operator=(const CublasLtProduct&) = delete;

  Status prepare(int64_t num_rows) {
    const auto n = static_cast<uint64_t>(num_rows);
    TESSERA_ASSIGN_OR_RETURN(workspace_, api_.allocate(kWorkspaceBytes));
    TESSERA_CUBLASLT_CALL(lt_, cublasLtCreate, &handle_);
    TESSERA_CUBLASLT_CALL(lt_, cublasLtMatmulDescCreate, &product_, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    TESSERA_CUBLASLT_CALL(lt_, cublasLtMatrixLayoutCreate, &matrix_, CUDA_R_16BF, n, n, num_rows);
    TESSERA_CUBLASLT_CALL(lt_, cublasLtMatmulPreferenceCreate, &preference_);
    TESSERA_CUBLASLT_CALL(lt_, cublasLtMatmulPreferenceSetAttribute, preference_,
                          CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspaceBytes,
                          sizeof kWorkspaceBytes);
    int num_chosen = 0;
    TESSERA_CUBLASLT_CALL(lt_, cublasLtMatmulAlgoGetHeuristic, handle_, product_, matrix_, matrix_,
                          matrix_, matrix_, preference_, 1, &chosen_, &num_chosen);
    if (num_chosen > 0 && chosen_.state == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrCat("cuBLASLt has no algorithm for bf16 matrices of ", num_rows, " rows"));
  }

  // A row-major matrix, read by columns, is its transpose: d^T = b^T a^T.
  Status multiply(const std::byte* a, const std::byte* b, std::byte* d, void* stream) override {
    const float alpha = 1.0f;
    const float beta = 0.0f;  // d is not read
    TESSERA_CUBLASLT_CALL(lt_, cublasLtMatmul, handle_, product_, &alpha, b, matrix_, a, matrix_,
                          &beta, d, matrix_, d, matrix_, &chosen_.algo, workspace_, kWorkspaceBytes,
                          static_cast<cudaStream_t>(stream));
    return absl::OkStatus();
  }

 private:
  const examples::CublasLtFunctions lt_;
  cuda::Api& api_;
  std::byte* workspace_ = nullptr;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatrixLayout_t matrix_ = nullptr;  // of all three
  cublasLtMatmulPreference_t preference_ = nullptr;
  cublasLtMatmulHeuristicResult_t chosen_ = {};
};

}  // namespace

StatusOr<std::shared_ptr<Product>> make_cublaslt_product(cuda::Api& api, int64_t num_rows) {
  TESSERA_ASSIGN_OR_RETURN(const examples::CublasLtFunctions functions, examples::load_cublaslt());
  auto product = std::make_shared<CublasLtProduct>(functions, api);
  TESSERA_RETURN_IF_ERROR(product->prepare(num_rows));
  return product;
}

}  // namespace tessera::benchmarks
