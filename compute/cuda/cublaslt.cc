// SPDX-License-Identifier: Apache-2.0
#include "compute/cuda/cublaslt.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera::cuda {
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

struct Types {
  cudaDataType_t elements;
  cublasComputeType_t compute;
  cudaDataType_t scale;
};
Types types_of(ElementType type) {
  switch (type) {
    case ElementType::kFloat16:
      return {CUDA_R_16F, CUBLAS_COMPUTE_32F, CUDA_R_32F};
    case ElementType::kBFloat16:
      return {CUDA_R_16BF, CUBLAS_COMPUTE_32F, CUDA_R_32F};
    case ElementType::kFloat64:
      return {CUDA_R_64F, CUBLAS_COMPUTE_64F, CUDA_R_64F};
    default:
      // Not in the shorter types of tensor cores.
      return {CUDA_R_32F, CUBLAS_COMPUTE_32F, CUDA_R_32F};
  }
}

uint64_t bytes_of(ElementType type) {
  return type == ElementType::kFloat64 ? 8 : type == ElementType::kFloat32 ? 4 : 2;
}

// The workspace that cuBLAS recommends for the GPUs of sm_90 ("cublasSetWorkspace" of its manual);
// 4 MiB are enough for others. A limit: a product takes what its algorithm needs.
constexpr uint64_t kMostWorkspaceBytes = uint64_t{32} << 20;

// How the parts of a split sum may be added (cublasLtReductionScheme_t in cublasLt.h of CUDA 13):
//   COMPUTE_TYPE, OUTPUT_TYPE   parts are stored "in the workspace and reduced in a separate step",
//                               so that nothing depends on which part is done first
//   INPLACE                     parts are added "using the output buffer", with "counters (in
//                               workspace) to guarantee the sequentiality". The order of the parts
//                               is not documented, so this scheme is not allowed
// With OUTPUT_TYPE a part of a half type would be rounded before the sum is.
uint32_t reductions_of(ElementType type) {
  const bool is_half = type == ElementType::kFloat16 || type == ElementType::kBFloat16;
  return CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE |
         (is_half ? 0 : CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE);
}

// What an address, and what is so many bytes further each time, are multiples of; cuBLASLt asks for
// no more than 256.
uint32_t alignment_of(const std::byte* data, uint64_t step_bytes) {
  const uint64_t bits = reinterpret_cast<uintptr_t>(data) | step_bytes | 256;
  return static_cast<uint32_t>(bits & ~(bits - 1));
}

}  // namespace

// Calls a function, and returns from the enclosing one with the error that it reports, if any.
#define TESSERA_CUBLASLT_CALL(lt, function, ...) \
  TESSERA_RETURN_IF_ERROR((lt).status_of((lt).function##_(__VA_ARGS__), #function))

// What cuBLASLt is told of a product: values of the host that the library makes and destroys. A
// row-major matrix, read by columns, is its transpose: so the product is asked for as its
// transpose, of b first and then a.
class GemmDescription {
 public:
  explicit GemmDescription(const CublasLt& lt) : lt_(lt) {}
  ~GemmDescription() {
    if (product != nullptr) lt_.cublasLtMatmulDescDestroy_(product);
    for (const cublasLtMatrixLayout_t layout : {a, b, c}) {
      if (layout != nullptr) lt_.cublasLtMatrixLayoutDestroy_(layout);
    }
    if (preference != nullptr) lt_.cublasLtMatmulPreferenceDestroy_(preference);
  }
  GemmDescription(const GemmDescription&) = delete;
  GemmDescription& operator=(const GemmDescription&) = delete;

  Status fill(const Gemm& gemm) {
    const Types types = types_of(gemm.type);
    TESSERA_CUBLASLT_CALL(lt_, cublasLtMatmulDescCreate, &product, types.compute, types.scale);
    TESSERA_RETURN_IF_ERROR(set_transpose(CUBLASLT_MATMUL_DESC_TRANSA, gemm.b.is_transposed));
    TESSERA_RETURN_IF_ERROR(set_transpose(CUBLASLT_MATMUL_DESC_TRANSB, gemm.a.is_transposed));
    const Gemm::Matrix result = {gemm.c, false, gemm.columns, gemm.rows * gemm.columns};
    TESSERA_RETURN_IF_ERROR(create_layout(&b, gemm, gemm.b, gemm.columns, gemm.summed));
    TESSERA_RETURN_IF_ERROR(create_layout(&a, gemm, gemm.a, gemm.summed, gemm.rows));
    TESSERA_RETURN_IF_ERROR(create_layout(&c, gemm, result, gemm.columns, gemm.rows));
    TESSERA_CUBLASLT_CALL(lt_, cublasLtMatmulPreferenceCreate, &preference);
    const auto alignment = [&](const Gemm::Matrix& matrix) {
      const int64_t step = gemm.batch > 1 ? matrix.batch_stride : 0;
      return alignment_of(matrix.data, static_cast<uint64_t>(step) * bytes_of(gemm.type));
    };
    const std::pair<cublasLtMatmulPreferenceAttributes_t, uint32_t> attributes[] = {
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions_of(gemm.type)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(gemm.b)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(gemm.a)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(result)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(result)}};
    for (const auto& [attribute, value] : attributes) {
      TESSERA_CUBLASLT_CALL(lt_, cublasLtMatmulPreferenceSetAttribute, preference, attribute,
                            &value, sizeof value);
    }
    return absl::OkStatus();
  }

  // The algorithm that the library takes for the fastest with a workspace of no more than that,
  // which it remembers for a description; nothing where it has none.
  using Choice = std::optional<cublasLtMatmulHeuristicResult_t>;
  StatusOr<Choice> choose(cublasLtHandle_t handle, uint64_t most_workspace_bytes) const {
    TESSERA_CUBLASLT_CALL(lt_, cublasLtMatmulPreferenceSetAttribute, preference,
                          CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most_workspace_bytes,
                          sizeof most_workspace_bytes);
    cublasLtMatmulHeuristicResult_t chosen = {};
    int num_chosen = 0;
    const cublasStatus_t found = lt_.cublasLtMatmulAlgoGetHeuristic_(
        handle, product, b, a, c, c, preference, 1, &chosen, &num_chosen);
    if (found == CUBLAS_STATUS_NOT_SUPPORTED) return Choice();
    TESSERA_RETURN_IF_ERROR(lt_.status_of(found, "cublasLtMatmulAlgoGetHeuristic"));
    return num_chosen > 0 && chosen.state == CUBLAS_STATUS_SUCCESS ? Choice(chosen) : Choice();
  }

  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;

 private:
  Status set_transpose(cublasLtMatmulDescAttributes_t attribute, bool is_transposed) const {
    const cublasOperation_t value = is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    TESSERA_CUBLASLT_CALL(lt_, cublasLtMatmulDescSetAttribute, product, attribute, &value,
                          sizeof value);
    return absl::OkStatus();
  }
  // Rows and columns are those of the transposed matrix that is multiplied; layouts are of what is
  // stored.
  Status create_layout(cublasLtMatrixLayout_t* layout, const Gemm& gemm, const Gemm::Matrix& matrix,
                       int64_t rows, int64_t columns) const {
    if (matrix.is_transposed) std::swap(rows, columns);
    TESSERA_CUBLASLT_CALL(lt_, cublasLtMatrixLayoutCreate, layout, types_of(gemm.type).elements,
                          static_cast<uint64_t>(rows), static_cast<uint64_t>(columns),
                          matrix.leading_stride);
    if (gemm.batch == 1) return absl::OkStatus();
    const auto count = static_cast<int32_t>(gemm.batch);
    TESSERA_CUBLASLT_CALL(lt_, cublasLtMatrixLayoutSetAttribute, *layout,
                          CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count);
    const int64_t stride = matrix.batch_stride;
    TESSERA_CUBLASLT_CALL(lt_, cublasLtMatrixLayoutSetAttribute, *layout,
                          CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride);
    return absl::OkStatus();
  }

  const CublasLt& lt_;
};

StatusOr<std::unique_ptr<CublasLt>> CublasLt::load(const std::string& library) {
  const std::string file =
      library.empty() ? absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR) : library;
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return missing(absl::StrCat("no cuBLASLt: ", dlerror()));
  std::unique_ptr<CublasLt> lt(new CublasLt());
#define TESSERA_CUBLASLT_LOAD(name)                                            \
  lt->name##_ = reinterpret_cast<decltype(lt->name##_)>(dlsym(handle, #name)); \
  if (lt->name##_ == nullptr) return missing(absl::StrCat(file, " has no ", #name));
  TESSERA_CUBLASLT_FUNCTIONS(TESSERA_CUBLASLT_LOAD)
#undef TESSERA_CUBLASLT_LOAD
  return lt;
}

Status CublasLt::status_of(cublasStatus_t status, absl::string_view function) const {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return Status(code_of(status), absl::StrCat(function, ": ", cublasLtGetStatusString_(status)));
}

StatusOr<cublasLtHandle_t> CublasLt::handle_of_current_gpu() {
  int gpu = 0;
  if (const cudaError_t error = cudaGetDevice(&gpu); error != cudaSuccess) {
    return absl::InternalError(absl::StrCat("cudaGetDevice: ", cudaGetErrorString(error)));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = handles_.find(gpu);
  if (it != handles_.end()) return it->second;
  cublasLtHandle_t handle = nullptr;
  TESSERA_CUBLASLT_CALL(*this, cublasLtCreate, &handle);
  handles_[gpu] = handle;
  return handle;
}

Status CublasLt::multiply(const Gemm& gemm, WorkspaceSource workspace, void* stream,
                          bool* has_algorithm) {
  GemmDescription as(*this);
  TESSERA_RETURN_IF_ERROR(as.fill(gemm));
  TESSERA_ASSIGN_OR_RETURN(const cublasLtHandle_t handle, handle_of_current_gpu());
  TESSERA_ASSIGN_OR_RETURN(GemmDescription::Choice chosen, as.choose(handle, kMostWorkspaceBytes));
  std::byte* memory = nullptr;
  if (chosen.has_value() && chosen->workspaceSize > 0) {
    const StatusOr<std::byte*> given = workspace(chosen->workspaceSize);
    if (given.ok()) {
      memory = *given;
    } else if (absl::IsResourceExhausted(given.status())) {
      TESSERA_ASSIGN_OR_RETURN(chosen, as.choose(handle, 0));
    } else {
      return given.status();
    }
  }
  *has_algorithm = chosen.has_value();
  if (!*has_algorithm) return absl::OkStatus();
  const float one = 1;
  const float zero = 0;  // c is not read
  const double one_f64 = 1;
  const double zero_f64 = 0;
  const bool is_f64 = gemm.type == ElementType::kFloat64;
  const void* const alpha = is_f64 ? static_cast<const void*>(&one_f64) : &one;
  const void* const beta = is_f64 ? static_cast<const void*>(&zero_f64) : &zero;
  TESSERA_CUBLASLT_CALL(*this, cublasLtMatmul, handle, as.product, alpha, gemm.b.data, as.b,
                        gemm.a.data, as.a, beta, gemm.c, as.c, gemm.c, as.c, &chosen->algo, memory,
                        chosen->workspaceSize, static_cast<cudaStream_t>(stream));
  return absl::OkStatus();
}

}  // namespace tessera::cuda
