// SPDX-License-Identifier: Apache-2.0
//
// FakeMath: the kernels of math.h on the streams of a FakeCuda, for tests.
//
//   auto cuda = FakeCuda::create({.num_gpus = 2});
//   internal::connect(options, {.cuda = fake_libraries(cuda)})
//
// Kernels run their bodies (math_bodies.h) item by item. FakeCuda counts launch() and multiply()
// and makes them fail, as its own functions. It also keeps their misuses: a kernel before
// load_kernels(), a kernel of no items, and memory from which vectors cannot be loaded.
#ifndef TESSERA_COMPUTE_CUDA_FAKE_FAKE_MATH_H_
#define TESSERA_COMPUTE_CUDA_FAKE_FAKE_MATH_H_

#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "base/status.h"
#include "compute/cuda/math_api.h"
#include "device/cuda/fake/fake_cuda.h"

namespace tessera::cuda {

// Thread-safe.
class FakeMath final : public MathApi {
 public:
  explicit FakeMath(std::shared_ptr<FakeCuda> cuda) : cuda_(std::move(cuda)) {}

  Status load_kernels() override;
  Status launch(const MathKernel& kernel, StreamHandle stream) override;
  // Takes a workspace for each sum of several terms, and overwrites it.
  Status multiply(const Gemm& gemm, WorkspaceSource workspace, StreamHandle stream) override;

 private:
  const std::shared_ptr<FakeCuda> cuda_;
  std::mutex mutex_;            // guards what follows
  std::set<int> with_kernels_;  // GPUs
};

// The fake, and a FakeMath on it.
std::shared_ptr<const Libraries> fake_libraries(std::shared_ptr<FakeCuda> cuda);

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_CUDA_FAKE_FAKE_MATH_H_
