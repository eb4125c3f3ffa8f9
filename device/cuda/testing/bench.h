// SPDX-License-Identifier: Apache-2.0
//
// Bench: one stream of GPU 0 with memory on both sides, and helpers for the cases of contracts.
//
//   TESSERA_ASSIGN_OR_RETURN(const auto bench, Bench::create(api));
//   TESSERA_ASSIGN_OR_RETURN(std::byte* const on_gpu, bench->upload(bytes));
//   TESSERA_ASSIGN_OR_RETURN(const auto got, bench->download(on_gpu, bytes.size()));
#ifndef TESSERA_DEVICE_CUDA_TESTING_BENCH_H_
#define TESSERA_DEVICE_CUDA_TESTING_BENCH_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "device/cuda/api.h"

namespace tessera::cuda {

Status expect(bool condition, absl::string_view what);

// Element i of an array.
template <class T>
T at(const std::vector<std::byte>& bytes, int64_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

class Bench {
 public:
  static StatusOr<std::unique_ptr<Bench>> create(Api& api);
  ~Bench();

  StreamHandle stream() const { return stream_; }
  StatusOr<std::byte*> memory(uint64_t size_bytes);
  // memory(), for products.
  auto workspaces() {
    return [this](uint64_t size_bytes) { return memory(size_bytes); };
  }
  StatusOr<std::byte*> pinned(uint64_t size_bytes);
  // New memory of the GPU with these bytes.
  StatusOr<std::byte*> upload(const std::vector<std::byte>& bytes);
  StatusOr<std::vector<std::byte>> download(const std::byte* from, uint64_t size_bytes);
  // Waits until the stream has done all work that it received.
  Status finish();
  Status wait(EventHandle event);

 private:
  explicit Bench(Api& api) : api_(api) {}

  Api& api_;
  StreamHandle stream_ = nullptr;
  EventHandle event_ = nullptr;
  std::vector<std::byte*> on_gpu_;
  std::vector<std::byte*> pinned_;
};

}  // namespace tessera::cuda

#endif  // TESSERA_DEVICE_CUDA_TESTING_BENCH_H_
