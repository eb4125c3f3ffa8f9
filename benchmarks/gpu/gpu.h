// SPDX-License-Identifier: Apache-2.0
//
// Gpu: a stream of a GPU for measurements, with memory that lives as long as it.
//
//   TESSERA_ASSIGN_OR_RETURN(const absl::Duration time, gpu->time(4, [&] { return launch(...); }));
//
// Waits spin, because the pauses of CudaQueue's waits are an eighth of the measured time. For one
// thread.
#ifndef TESSERA_BENCHMARKS_GPU_GPU_H_
#define TESSERA_BENCHMARKS_GPU_GPU_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "device/cuda/api.h"

namespace tessera::benchmarks {

class Gpu {
 public:
  static StatusOr<std::unique_ptr<Gpu>> create(std::shared_ptr<cuda::Api> api, int gpu);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  cuda::Api& api() { return *api_; }
  cuda::StreamHandle stream() { return stream_; }
  // Sets the thread's GPU, which other work may have changed.
  Status use() { return api_->set_device(gpu_); }

  StatusOr<std::byte*> allocate(int64_t size_bytes);
  // Copies to memory of the host.
  StatusOr<std::vector<std::byte>> read(const std::byte* from, int64_t size_bytes);
  // Waits until the stream has done all submitted work.
  Status wait();
  // The time per call for `repeats` calls of `give`, which submits work to the stream. Measured
  // from an idle GPU to an idle GPU.
  StatusOr<absl::Duration> time(int repeats, absl::FunctionRef<Status()> give);

 private:
  Gpu(std::shared_ptr<cuda::Api> api, int gpu) : api_(std::move(api)), gpu_(gpu) {}

  const std::shared_ptr<cuda::Api> api_;
  const int gpu_;
  cuda::StreamHandle stream_ = nullptr;
  cuda::EventHandle event_ = nullptr;
  std::vector<std::byte*> memory_;
};

}  // namespace tessera::benchmarks

#endif  // TESSERA_BENCHMARKS_GPU_GPU_H_
