// SPDX-License-Identifier: Apache-2.0
//
// CpuDevice: a device of a client on the CPU: a stream of its own, and memory of the client's pool,
// which all of its CPU devices share.
#ifndef TESSERA_DEVICE_CPU_CPU_DEVICE_H_
#define TESSERA_DEVICE_CPU_CPU_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "device/buffer.h"
#include "device/cpu/arena.h"
#include "device/cpu/cpu_stream.h"
#include "device/local_device.h"
#include "device/memory_pool.h"
#include "device/stream.h"

namespace tessera {

class CpuDevice final : public LocalDevice {
 public:
  // As CpuStream::create().
  static StatusOr<std::unique_ptr<CpuDevice>> create(absl::string_view subject,
                                                     StreamObserver* observer,
                                                     std::shared_ptr<ArenaPool> pool);

  Stream& stream() const override { return *stream_; }
  std::shared_ptr<MemoryPool> memory() const override { return pool_; }
  bool uses_host_memory() const override { return true; }
  StatusOr<std::shared_ptr<Buffer>> new_buffer(int64_t size_bytes) const override {
    return Buffer::allocate(pool_, size_bytes);
  }

  Status fill(DType dtype, const void* element, std::byte* out, int64_t num_elements) override;
  Status iota(DType dtype, const Shape& shape, const Box& box, std::byte* out) override;
  using LocalDevice::finish;
  void finish(absl::Span<const std::shared_ptr<Buffer>> buffers, const Status& status) override;

  StatusOr<std::shared_ptr<Buffer>> new_staging(
      const std::shared_ptr<Buffer>& buffer) const override {
    return buffer;
  }
  // `from` is `to`.
  void upload(const std::shared_ptr<const Buffer>& from,
              const std::shared_ptr<Buffer>& to) override;
  std::shared_ptr<const Buffer> host_copy(const std::shared_ptr<const Buffer>& buffer) override {
    return buffer;
  }

 private:
  CpuDevice(std::unique_ptr<CpuStream> stream, std::shared_ptr<ArenaPool> pool);

  const std::shared_ptr<ArenaPool> pool_;
  const std::unique_ptr<CpuStream> stream_;
};

}  // namespace tessera

#endif  // TESSERA_DEVICE_CPU_CPU_DEVICE_H_
