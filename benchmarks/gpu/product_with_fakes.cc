// SPDX-License-Identifier: Apache-2.0
//
// The product as a loop of the host, in its turn on a stream of the fake of CUDA.
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "Eigen/Core"
#include "base/dtype.h"
#include "benchmarks/gpu/product.h"
#include "device/cuda/fake/fake_cuda.h"

namespace tessera::benchmarks {
namespace {

class FakeProduct : public Product {
 public:
  FakeProduct(cuda::FakeCuda& cuda, int64_t num_rows) : cuda_(cuda), n_(num_rows) {}

  Status multiply(const std::byte* a, const std::byte* b, std::byte* d, void* stream) override {
    const auto size = static_cast<uint64_t>(n_ * n_) * sizeof(Eigen::bfloat16);
    const std::vector<std::pair<const std::byte*, uint64_t>> memory = {
        {a, size}, {b, size}, {d, size}};
    return cuda_.enqueue_work(
        "product", memory,
        [n = n_, x = reinterpret_cast<const Eigen::bfloat16*>(a),
         y = reinterpret_cast<const Eigen::bfloat16*>(b),
         z = reinterpret_cast<Eigen::bfloat16*>(d)] {
          for (int64_t i = 0; i < n; ++i) {
            for (int64_t j = 0; j < n; ++j) {
              float sum = 0;
              for (int64_t k = 0; k < n; ++k) {
                sum += static_cast<float>(x[i * n + k]) * static_cast<float>(y[k * n + j]);
              }
              z[i * n + j] = Eigen::bfloat16(sum);
            }
          }
        },
        static_cast<cuda::StreamHandle>(stream));
  }

 private:
  cuda::FakeCuda& cuda_;
  const int64_t n_;
};

}  // namespace

StatusOr<std::shared_ptr<Product>> make_product_with_fakes(cuda::Api& api, int64_t num_rows) {
  return std::make_shared<FakeProduct>(dynamic_cast<cuda::FakeCuda&>(api), num_rows);
}

}  // namespace tessera::benchmarks
