// SPDX-License-Identifier: Apache-2.0
//
// LocalDevice: a device of this client, whatever it is: a stream, memory, and what tensors ask of
// them. device/cpu and device/cuda implement it.
//
//   device.produce("full", buffer, [&](std::byte* out) { return device.fill(..., out, ...); });
//   device.host_copy(buffer)->ready().wait();
//
// A device either lets threads of the host use its memory, and does its work within the tasks of
// its stream, or does the work that tasks give it by itself, some time later.
#ifndef TESSERA_DEVICE_LOCAL_DEVICE_H_
#define TESSERA_DEVICE_LOCAL_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
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

// Thread-safe. Must outlive what was given to its stream.
class LocalDevice {
 public:
  virtual ~LocalDevice() = default;

  virtual Stream& stream() const = 0;
  virtual std::shared_ptr<MemoryPool> memory() const = 0;
  // Whether threads of the host read and write its memory. Devices that do may share a buffer of
  // equal contents, and a thread may do small work for them itself.
  virtual bool uses_host_memory() const = 0;
  // The stream to which programs give their own work: a cudaStream_t; null where tasks do the work.
  virtual void* native_stream() const { return nullptr; }
  // The engine that computes in its memory; null where threads of the host do.
  virtual Engine* engine() { return nullptr; }
  // A buffer for an op that the stream gets next. Memory that the host uses is there at once, other
  // memory when the stream reaches the op (Buffer::take_memory()).
  virtual StatusOr<std::shared_ptr<Buffer>> new_buffer(int64_t size_bytes) const = 0;

  // ---- For tasks of the stream. `out` is memory of the device.

  // Waits until what comes next in the stream finds the contents of an input there. An error that
  // is found later, of a buffer that is unverified, is that of what finish() ends next.
  virtual Status use(const Buffer& input) { return input.wait_issued(); }

  // Every element of `out` is the one at `element`.
  virtual Status fill(DType dtype, const void* element, std::byte* out, int64_t num_elements) = 0;
  // Every element in `box` of a tensor of this shape is its flat index.
  virtual Status iota(DType dtype, const Shape& shape, const Box& box, std::byte* out) = 0;
  // Ends the op that fills buffers of this device. ready() is set when all that the op gave the
  // device is done, with what the device found wrong with the op's indices or inputs, if anything;
  // with an error at once, from any thread.
  virtual void finish(absl::Span<const std::shared_ptr<Buffer>> buffers, const Status& status) = 0;
  void finish(const std::shared_ptr<Buffer>& buffer, const Status& status) {
    finish(absl::MakeConstSpan(&buffer, 1), status);
  }

  // ---- From any thread.

  // Enqueues the op that fills a buffer of this device: `give(out)` returns a Status, which is the
  // buffer's where it is an error.
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
  // Memory for the host to write what upload() moves to a buffer of this device: that buffer itself
  // where the host uses its memory.
  virtual StatusOr<std::shared_ptr<Buffer>> new_staging(
      const std::shared_ptr<Buffer>& buffer) const = 0;
  // Fills a buffer of this device with what the host has written to a buffer of new_staging(); one
  // may serve several buffers of equal contents.
  virtual void upload(const std::shared_ptr<const Buffer>& from,
                      const std::shared_ptr<Buffer>& to) = 0;
  // A buffer that the host may read when it is ready: `buffer` itself, or a copy that exists once
  // for as long as it is held.
  virtual std::shared_ptr<const Buffer> host_copy(const std::shared_ptr<const Buffer>& buffer) = 0;
};

}  // namespace tessera

#endif  // TESSERA_DEVICE_LOCAL_DEVICE_H_
