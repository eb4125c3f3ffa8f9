// SPDX-License-Identifier: Apache-2.0
//
// What can be told of cuBLASLt without a GPU: its names are in the library of the build machine,
// which takes the descriptions of products as far as a handle is needed. On a GPU the contract of
// MathApi (math_contract_on_gpu_test.cc) goes further.
#include "compute/cuda/cublaslt.h"

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "absl/time/time.h"
#include "device/cuda/open_api.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/forked.h"
#include "tests/support/matchers.h"

namespace tessera::cuda {
namespace {

using tessera::testing::IsOk;
using tessera::testing::StatusIs;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST(CublasLtTest, SaysWhatIsMissing) {
  EXPECT_THAT(CublasLt::load("libthere_is_none.so"),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("no cuBLASLt: libthere_is_none.so"),
                             HasSubstr("matrix products on GPUs need cuBLASLt of CUDA"))));
  EXPECT_THAT(CublasLt::load("libm.so.6"),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("libm.so.6 has no cublasLtGetStatusString; matrix products")));
}

TEST(CublasLtTest, TheLibraryTakesTheDescriptionsOfProducts) {
  const char* const library = std::getenv("TESSERA_CUBLASLT_LIBRARY");
  if (library == nullptr) GTEST_SKIP() << "no cuBLASLt on the machine";
  const StatusOr<std::unique_ptr<CublasLt>> lt = CublasLt::load(library);
  ASSERT_THAT(lt, IsOk());
  alignas(16) std::byte memory[64] = {};
  for (const ElementType type : {ElementType::kFloat16, ElementType::kBFloat16,
                                 ElementType::kFloat32, ElementType::kFloat64}) {
    Gemm gemm;
    gemm.type = type;
    gemm.batch = 2;
    gemm.a = {memory, false, 1, 1};
    gemm.b = {memory, true, 1, 1};
    gemm.c = memory;
    EXPECT_THAT(testing::run_isolated(absl::Seconds(60),
                                      [&]() -> Status {
                                        if (open_api().ok()) return absl::OkStatus();
                                        bool has_algorithm = false;
                                        const auto none = [](uint64_t) -> StatusOr<std::byte*> {
                                          return absl::ResourceExhaustedError("no memory");
                                        };
                                        return (*lt)->multiply(gemm, none, nullptr, &has_algorithm);
                                      }),
                AnyOf(IsOk(), StatusIs(absl::StatusCode::kInternal, HasSubstr("cudaGetDevice: "))));
  }
}

}  // namespace
}  // namespace tessera::cuda
