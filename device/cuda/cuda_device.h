// SPDX-License-Identifier: Apache-2.0
//
// CudaDevice: a device of a client on a GPU, which several devices may share: a stream, memory, and
// the operations on them.
//
//   GPU 0   | device 0: stream, pool |   | device 2: stream, pool |      several devices may share
//   GPU 1   | device 1: stream, pool |   | device 3: stream, pool |      a GPU
//
// Only the device's own stream reads and writes its memory, and the streams of other devices
// between events that order them; the host never touches it. Functions for tasks give the stream
// work and return.
#ifndef TESSERA_DEVICE_CUDA_CUDA_DEVICE_H_
#define TESSERA_DEVICE_CUDA_CUDA_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "device/buffer.h"
#include "device/completion.h"
#include "device/cuda/api.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/kernel_plan.h"
#include "device/cuda/slab_pool.h"
#include "device/local_device.h"
#include "device/memory_pool.h"

namespace tessera::cuda {

// Lets each of these GPUs reach the memory of the others. FailedPrecondition where two cannot.
Status enable_peers(Api& api, absl::Span<const int> gpus);

class CudaDevice final : public LocalDevice {
 public:
  // `source`: the allocator of the GPU's memory, if it is not CUDA.
  static StatusOr<std::unique_ptr<CudaDevice>> create(std::shared_ptr<Api> api, int gpu,
                                                      StreamObserver* observer,
                                                      SlabSource source = {});

  int gpu() const { return queue().gpu(); }
  CudaStream& stream() const override { return *stream_; }
  CudaQueue& queue() const { return stream_->queue(); }
  std::optional<int> cuda_ordinal() const override { return gpu(); }
  void* native_stream() const override { return queue().handle(); }
  std::shared_ptr<MemoryPool> memory() const override { return slabs_; }
  bool uses_host_memory() const override { return false; }
  StatusOr<std::shared_ptr<Buffer>> new_buffer(int64_t size_bytes) const override {
    return Buffer::deferred(slabs_, size_bytes);
  }
  // Sets engine(), before the first task. The device owns it; the engine may refer to the device.
  void set_engine(std::shared_ptr<Engine> engine) { engine_ = std::move(engine); }
  // memory(), by its own type.
  const std::shared_ptr<SlabPool>& slabs() const { return slabs_; }
  const std::shared_ptr<SlabPool>& pinned() const { return pinned_; }

  // ---- For tasks of the stream.

  Engine* engine() override { return engine_.get(); }
  Status use(const Buffer& input) override;
  Status copy_bytes(std::byte* to, const std::byte* from, int64_t num_bytes);
  Status copy(const CopyPlan& plan);
  Status launch(const Kernel& kernel);
  Status reduce(absl::Span<const Reduce> plan);
  Status fill(DType dtype, const void* element, std::byte* out, int64_t num_elements) override;
  Status iota(DType dtype, const Shape& shape, const Box& box, std::byte* out) override;
  // Adds a check of the op that the task is making. It is called once, when the GPU has done the
  // work that the task gives it before finish(); its error is the error of the op. It reads what
  // the GPU wrote to memory about wrong values.
  void add_check(std::function<Status()> check) { doubts_.checks.push_back(std::move(check)); }
  // Marks the buffers as issued now, with this status, and as ready when the GPU is done. They are
  // unverified if the op has checks, or looks at inputs that are unverified.
  using LocalDevice::finish;
  void finish(absl::Span<const std::shared_ptr<Buffer>> buffers, const Status& status) override;

  // ---- From any thread; upload() and download() enqueue a task.

  // A pinned buffer.
  StatusOr<std::shared_ptr<Buffer>> new_staging(
      const std::shared_ptr<Buffer>& buffer) const override {
    return Buffer::allocate(pinned_, buffer->size_bytes());
  }
  void upload(const std::shared_ptr<const Buffer>& from,
              const std::shared_ptr<Buffer>& to) override;
  // A pinned buffer that will hold the contents of a buffer of this device.
  std::shared_ptr<const Buffer> download(std::shared_ptr<const Buffer> from);
  // The copy that download() has returned, while that is held.
  std::shared_ptr<const Buffer> host_copy(const std::shared_ptr<const Buffer>& buffer) override {
    return buffer->host_copy([&] { return download(buffer); });
  }

 private:
  CudaDevice(std::unique_ptr<CudaStream> stream, std::shared_ptr<Api> api, SlabSource source);

  // Possible errors of the op by which a task fills a buffer.
  struct Doubts {
    std::vector<std::function<Status()>> checks;
    std::vector<std::shared_ptr<Completion>> inputs;
    // Requires that the GPU is done.
    Status status() const;
  };

  std::shared_ptr<SlabPool> slabs_;
  std::shared_ptr<SlabPool> pinned_;
  std::shared_ptr<Engine> engine_;
  Doubts doubts_;                       // of the task that runs, since it filled a buffer last
  std::unique_ptr<CudaStream> stream_;  // destroyed first: its work uses the pools
};

}  // namespace tessera::cuda

#endif  // TESSERA_DEVICE_CUDA_CUDA_DEVICE_H_
