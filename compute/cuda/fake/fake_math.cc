// SPDX-License-Identifier: Apache-2.0
#include "compute/cuda/fake/fake_math.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "compute/cuda/fake/run_math.h"

namespace tessera::cuda {

Status FakeMath::load_kernels() {
  cuda_->expect_device("load_kernels");
  std::lock_guard<std::mutex> lock(mutex_);
  with_kernels_.insert(cuda_->current_device());
  return absl::OkStatus();
}

Status FakeMath::launch(const MathKernel& kernel, StreamHandle stream) {
  const int gpu = cuda_->current_device();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (with_kernels_.count(gpu) == 0) {
      // CUDA loads it now, and may wait for kernels that wait for this one.
      return cuda_->report_misuse("launch",
                                  absl::StrCat("the math kernels of GPU ", gpu, " are not loaded"));
    }
  }
  auto held = std::make_shared<const MathKernel>(kernel);
  std::string why = std::visit([](const auto& value) { return invalid(value); }, *held);
  if (!why.empty()) return cuda_->report_misuse("launch", std::move(why));
  return cuda_->enqueue_work(
      "launch", std::visit([](const auto& value) { return touched(value); }, *held),
      [held] { std::visit([](const auto& value) { run(value); }, *held); }, stream);
}

Status FakeMath::multiply(const Gemm& gemm, WorkspaceSource workspace, StreamHandle stream) {
  constexpr uint64_t kWorkspaceBytes = 1024;
  const Product product = product_of(gemm);
  auto memory = touched(product);
  std::byte* partial_sums = nullptr;
  if (gemm.summed > 1) {
    const StatusOr<std::byte*> given = workspace(kWorkspaceBytes);
    if (!given.ok() && !absl::IsResourceExhausted(given.status())) return given.status();
    if (given.ok()) partial_sums = *given;
  }
  if (partial_sums != nullptr) memory.emplace_back(partial_sums, kWorkspaceBytes);
  return cuda_->enqueue_work(
      "multiply", memory,
      [product, partial_sums] {
        if (partial_sums != nullptr) std::memset(partial_sums, 0xff, kWorkspaceBytes);
        run(product);
      },
      stream);
}

std::shared_ptr<const Libraries> fake_libraries(std::shared_ptr<FakeCuda> cuda) {
  auto math = std::make_shared<FakeMath>(cuda);
  return std::make_shared<const Libraries>(Libraries{std::move(cuda), std::move(math)});
}

}  // namespace tessera::cuda
