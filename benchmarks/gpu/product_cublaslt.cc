// SPDX-License-Identifier: Apache-2.0
//
// The product by cuBLASLt, which is loaded when it is asked for: 500 MB that no program links.
#include <cublasLt.h>
#include <dlfcn.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "benchmarks/gpu/product.h"

namespace tessera::benchmarks {
namespace {

// As NVIDIA asks for on Hopper.
constexpr uint64_t kWorkspaceBytes = uint64_t{32} << 20;

// The functions, by the names that the library exports. X(name).
#define TESSERA_PRODUCT_FUNCTIONS(X)      \
  X(cublasLtGetStatusString)              \
  X(cublasLtCreate)                       \
  X(cublasLtDestroy)                      \
  X(cublasLtMatmulDescCreate)             \
  X(cublasLtMatmulDescDestroy)            \
  X(cublasLtMatrixLayoutCreate)           \
  X(cublasLtMatrixLayoutDestroy)          \
  X(cublasLtMatmulPreferenceCreate)       \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatmulPreferenceDestroy)      \
  X(cublasLtMatmulAlgoGetHeuristic)       \
  X(cublasLtMatmul)

struct Functions {
#define TESSERA_PRODUCT_MEMBER(name) decltype(&::name) name = nullptr;
  TESSERA_PRODUCT_FUNCTIONS(TESSERA_PRODUCT_MEMBER)
#undef TESSERA_PRODUCT_MEMBER
};

// The library stays loaded: it has memory and threads of its own.
StatusOr<Functions> load() {
  const std::string library = absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR);
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("no cuBLASLt: ", dlerror(), "; set LD_LIBRARY_PATH to where it is"));
  }
  Functions functions;
#define TESSERA_PRODUCT_LOAD(name)                                                   \
  functions.name = reinterpret_cast<decltype(functions.name)>(dlsym(handle, #name)); \
  if (functions.name == nullptr) {                                                   \
    return absl::UnimplementedError(absl::StrCat(library, " has no ", #name));       \
  }
  TESSERA_PRODUCT_FUNCTIONS(TESSERA_PRODUCT_LOAD)
#undef TESSERA_PRODUCT_LOAD
  return functions;
}

class CublasLtProduct : public Product {
 public:
  CublasLtProduct(const Functions& functions, cuda::Api& api) : lt_(functions), api_(api) {}
  ~CublasLtProduct() override {
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
    TESSERA_RETURN_IF_ERROR(ok(lt_.cublasLtCreate(&handle_), "cublasLtCreate"));
    TESSERA_RETURN_IF_ERROR(
        ok(lt_.cublasLtMatmulDescCreate(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
           "cublasLtMatmulDescCreate"));
    TESSERA_RETURN_IF_ERROR(
        ok(lt_.cublasLtMatrixLayoutCreate(&matrix_, CUDA_R_16BF, n, n, num_rows),
           "cublasLtMatrixLayoutCreate"));
    cublasLtMatmulPreference_t preference = nullptr;
    TESSERA_RETURN_IF_ERROR(
        ok(lt_.cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate"));
    Status status = ok(lt_.cublasLtMatmulPreferenceSetAttribute(
                           preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspaceBytes,
                           sizeof kWorkspaceBytes),
                       "cublasLtMatmulPreferenceSetAttribute");
    int num_chosen = 0;
    if (status.ok()) {
      status = ok(lt_.cublasLtMatmulAlgoGetHeuristic(handle_, product_, matrix_, matrix_, matrix_,
                                                     matrix_, preference, 1, &chosen_, &num_chosen),
                  "cublasLtMatmulAlgoGetHeuristic");
    }
    lt_.cublasLtMatmulPreferenceDestroy(preference);
    TESSERA_RETURN_IF_ERROR(status);
    if (num_chosen > 0 && chosen_.state == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrCat("cuBLASLt has no algorithm for bf16 matrices of ", num_rows, " rows"));
  }

  // What lies row by row is, by columns, the transpose: d^T = b^T a^T.
  Status multiply(const std::byte* a, const std::byte* b, std::byte* d, void* stream) override {
    const float alpha = 1.0f;
    const float beta = 0.0f;  // d is not read
    return ok(lt_.cublasLtMatmul(handle_, product_, &alpha, b, matrix_, a, matrix_, &beta, d,
                                 matrix_, d, matrix_, &chosen_.algo, workspace_, kWorkspaceBytes,
                                 static_cast<cudaStream_t>(stream)),
              "cublasLtMatmul");
  }

 private:
  Status ok(cublasStatus_t status, absl::string_view function) const {
    if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(function, ": ", lt_.cublasLtGetStatusString(status)));
  }

  const Functions lt_;
  cuda::Api& api_;
  std::byte* workspace_ = nullptr;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatrixLayout_t matrix_ = nullptr;  // of all three
  cublasLtMatmulHeuristicResult_t chosen_ = {};
};

}  // namespace

StatusOr<std::shared_ptr<Product>> make_cublaslt_product(cuda::Api& api, int64_t num_rows) {
  TESSERA_ASSIGN_OR_RETURN(const Functions functions, load());
  auto product = std::make_shared<CublasLtProduct>(functions, api);
  TESSERA_RETURN_IF_ERROR(product->prepare(num_rows));
  return product;
}

}  // namespace tessera::benchmarks
