// SPDX-License-Identifier: Apache-2.0
//
// The MathApi of the CUDA toolkit, and open_libraries() of a build that has it.
#include <memory>
#include <utility>
#include <variant>

#include "compute/cuda/math_launch.h"
#include "compute/cuda/open_libraries.h"
#include "compute/cuda/products.h"
#include "device/cuda/open_api.h"
#include "device/cuda/toolkit_status.h"

namespace tessera::cuda {
namespace {

class ToolkitMath : public MathApi {
 public:
  Status load_kernels() override {
    return toolkit_status(load_math_kernels(), "cudaFuncGetAttributes");
  }
  Status launch(const MathKernel& kernel, StreamHandle stream) override {
    const int error =
        std::visit([stream](const auto& values) { return cuda::launch(values, stream); }, kernel);
    return toolkit_status(error, "the launch of a kernel");
  }
  Status multiply(const Gemm& gemm, WorkspaceSource workspace, StreamHandle stream) override {
    bool is_done = false;
    TESSERA_RETURN_IF_ERROR(products_.multiply(gemm, workspace, stream, &is_done));
    return is_done ? absl::OkStatus() : launch(product_of(gemm), stream);
  }

 private:
  Products products_;
};

}  // namespace

StatusOr<std::shared_ptr<const Libraries>> open_libraries() {
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Api> cuda, open_api());
  return std::make_shared<const Libraries>(
      Libraries{std::move(cuda), std::make_shared<ToolkitMath>()});
}

}  // namespace tessera::cuda
