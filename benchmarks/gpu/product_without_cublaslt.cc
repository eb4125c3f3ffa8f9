// SPDX-License-Identifier: Apache-2.0
//
// make_cublaslt_product() of a build that found no cuBLASLt.
#include <cstdint>
#include <memory>

#include "benchmarks/gpu/product.h"

namespace tessera::benchmarks {

StatusOr<std::shared_ptr<Product>> make_cublaslt_product(cuda::Api& /*api*/, int64_t /*num_rows*/) {
  return absl::UnimplementedError(
      "this build has no cuBLASLt: install the CUDA toolkit, and build again");
}

}  // namespace tessera::benchmarks
