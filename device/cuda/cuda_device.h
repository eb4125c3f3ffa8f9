// SPDX-License-Identifier: Apache-2.0
//
// CudaDevice: one device of a client that lives on a GPU: a stream, memory, and what can be asked
// of them.
//
//   GPU 0   | device 0: stream, pool |   | device 2: stream, pool |      several devices may share
//   GPU 1   | device 1: stream, pool |   | device 3: stream, pool |      a GPU
//
// Memory of a device is read and written by its own stream, or by the streams of others between
// events that order them; the host never touches it. Functions named for tasks give the stream work
// to do and return.
#ifndef TESSERA_DEVICE_CUDA_CUDA_DEVICE_H_
#define TESSERA_DEVICE_CUDA_CUDA_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "device/buffer.h"
#include "device/cuda/api.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/kernel_plan.h"
#include "device/cuda/slab_pool.h"

namespace tessera::cuda {

// Lets each of these GPUs reach the memory of the others. FailedPrecondition where two cannot.
Status enable_peers(Api& api, absl::Span<const int> gpus);

class CudaDevice {
 public:
  // `source`: where memory of the GPU is from, if not from CUDA.
  static StatusOr<std::unique_ptr<CudaDevice>> create(std::shared_ptr<Api> api, int gpu,
                                                      StreamObserver* observer,
                                                      SlabSource source = {});

  int gpu() const { return queue().gpu(); }
  CudaStream& stream() const { return *stream_; }
  CudaQueue& queue() const { return stream_->queue(); }
  const std::shared_ptr<SlabPool>& memory() const { return memory_; }
  const std::shared_ptr<SlabPool>& pinned() const { return pinned_; }

  // ---- For tasks of the stream.

  Status copy_bytes(std::byte* to, const std::byte* from, int64_t num_bytes);
  Status copy(const CopyPlan& plan);
  Status launch(const Kernel& kernel);
  Status reduce(absl::Span<const Reduce> plan);
  // Every element of `out` is the one at `element`.
  Status fill(DType dtype, const void* element, std::byte* out, int64_t num_elements);
  Status iota(DType dtype, const Shape& shape, const Box& box, std::byte* out);

  // Ends the op that fills a buffer: issued now, with this status, and ready when the GPU is done.
  void finish(const std::shared_ptr<Buffer>& buffer, const Status& status);

  // ---- From any thread; enqueues a task.

  // Fills a deferred buffer of this device by what `give` gives the stream. An error is the
  // buffer's.
  void produce(std::string label, std::shared_ptr<Buffer> out,
               absl::AnyInvocable<Status(std::byte* out)> give);
  // Fills a deferred buffer of this device with what a pinned one holds already.
  void upload(std::shared_ptr<const Buffer> from, std::shared_ptr<Buffer> to);
  // A pinned buffer that will hold what a buffer of this device does.
  std::shared_ptr<const Buffer> download(std::shared_ptr<const Buffer> from);

 private:
  CudaDevice(std::unique_ptr<CudaStream> stream, std::shared_ptr<Api> api, SlabSource source);

  std::shared_ptr<SlabPool> memory_;
  std::shared_ptr<SlabPool> pinned_;
  std::unique_ptr<CudaStream> stream_;  // goes first: its work uses the pools
};

}  // namespace tessera::cuda

#endif  // TESSERA_DEVICE_CUDA_CUDA_DEVICE_H_
