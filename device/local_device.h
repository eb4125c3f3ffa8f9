// SPDX-License-Identifier: Apache-2.0
//
// LocalDevice: a device of this client of any kind: its stream, its memory, and the operations that
// tensors need of them. device/cpu and device/cuda implement it.
//
//   device.produce("full", buffer, [&](std::byte* out) { return device.fill(..., out, ...); });
//   device.host_copy(buffer)->ready().wait();
//
// There are two kinds of device. One lets threads of the host use its memory, and does its work
// within the tasks of its stream. The other executes the work that tasks give it some time later.
#ifndef TESSERA_DEVICE_LOCAL_DEVICE_H_
#define TESSERA_DEVICE_LOCAL_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "device/buffer.h"
#include "device/memory_pool.h"
#include "device/stream.h"

namespace tessera {

class Engine;  // compute/engine.h

// Thread-safe. Must outlive all work that its stream received.
class LocalDevice {
 public:
  virtual ~LocalDevice() = default;

  virtual Stream& stream() const = 0;
  virtual std::shared_ptr<MemoryPool> memory() const = 0;
  // Whether threads of the host read and write its memory. Such devices may share a buffer of equal
  // contents, and a thread may do small work for them itself.
  virtual bool uses_host_memory() const = 0;
  // The GPU whose memory this is, by its CUDA ordinal, for libraries that take such memory; none
  // where the host uses it.
  virtual std::optional<int> cuda_ordinal() const { return std::nullopt; }
  // The stream to which programs give their own work: a cudaStream_t; null where tasks do the work.
  virtual void* native_stream() const { return nullptr; }
  // The engine that computes in its memory; null where threads of the host compute.
  virtual Engine* engine() { return nullptr; }
  // A buffer for the next op that the stream receives. Memory that the host uses is allocated at
  // once, other memory when the stream reaches the op (Buffer::take_memory()).
  virtual StatusOr<std::shared_ptr<Buffer>> new_buffer(int64_t size_bytes) const = 0;

  // ---- For tasks of the stream. `out` is memory of the device.

  // Waits until later work in the stream finds the contents of an input there. An unverified buffer
  // may fail later: its error then becomes the error of the op that finish() ends next.
  virtual Status use(const Buffer& input) { return input.wait_issued(); }

  // Sets every element of `out` to the element at `element`.
  virtual Status fill(DType dtype, const void* element, std::byte* out, int64_t num_elements) = 0;
  // Sets every element in `box` of a tensor of this shape to its flat index.
  virtual Status iota(DType dtype, const Shape& shape, const Box& box, std::byte* out) = 0;
  // Ends the op that fills buffers of this device. ready() is set when the device has done all work
  // of the op, with the errors that the device found in the op's indices or inputs. Where `status`
  // is an error ready() is set at once, from any thread.
  virtual void finish(absl::Span<const std::shared_ptr<Buffer>> buffers, const Status& status) = 0;
  void finish(const std::shared_ptr<Buffer>& buffer, const Status& status) {
    finish(absl::MakeConstSpan(&buffer, 1), status);
  }

  // ---- From any thread.

  // Enqueues the op that fills a buffer of this device. Where `give(out)` returns an error, it
  // becomes the error of the buffer.
  template <class Give>
  void produce(std::string label, std::shared_ptr<Buffer> out, Give give) {
    stream().enqueue(std::move(label),
                     [this, out = std::move(out), give = std::move(give)]() mutable {
                       Status status = out->take_memory();
                       if (status.ok()) status = give(out->mutable_data());
                       finish(out, status);
                       return status;
                     });
  }
  // Memory in which the host writes the contents for upload(). It is `buffer` itself where the host
  // uses the memory of this device.
  virtual StatusOr<std::shared_ptr<Buffer>> new_staging(
      const std::shared_ptr<Buffer>& buffer) const = 0;
  // Fills a buffer of this device with the contents of a buffer of new_staging(). One staging
  // buffer may serve several buffers of equal contents.
  virtual void upload(const std::shared_ptr<const Buffer>& from,
                      const std::shared_ptr<Buffer>& to) = 0;
  // A buffer that the host may read when it is ready: `buffer` itself, or a copy. A copy is made
  // only once while it is held.
  virtual std::shared_ptr<const Buffer> host_copy(const std::shared_ptr<const Buffer>& buffer) = 0;
};

}  // namespace tessera

#endif  // TESSERA_DEVICE_LOCAL_DEVICE_H_
