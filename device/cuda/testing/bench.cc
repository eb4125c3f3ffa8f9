// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/testing/bench.h"

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"

namespace tessera::cuda {

Status expect(bool condition, absl::string_view what) {
  return condition ? absl::OkStatus() : absl::InternalError(absl::StrCat("not so: ", what));
}

StatusOr<std::unique_ptr<Bench>> Bench::create(Api& api) {
  std::unique_ptr<Bench> bench(new Bench(api));
  TESSERA_RETURN_IF_ERROR(api.set_device(0));
  TESSERA_RETURN_IF_ERROR(api.load_kernels());
  TESSERA_ASSIGN_OR_RETURN(bench->stream_, api.create_stream());
  TESSERA_ASSIGN_OR_RETURN(bench->event_, api.create_event());
  return bench;
}

Bench::~Bench() {
  finish().IgnoreError();
  for (std::byte* memory : on_gpu_) api_.free(memory).IgnoreError();
  for (std::byte* memory : pinned_) api_.free_pinned(memory).IgnoreError();
  if (event_ != nullptr) api_.destroy_event(event_).IgnoreError();
  if (stream_ != nullptr) api_.destroy_stream(stream_).IgnoreError();
}

StatusOr<std::byte*> Bench::memory(uint64_t size_bytes) {
  TESSERA_ASSIGN_OR_RETURN(std::byte * memory, api_.allocate(std::max<uint64_t>(1, size_bytes)));
  on_gpu_.push_back(memory);
  return memory;
}

StatusOr<std::byte*> Bench::pinned(uint64_t size_bytes) {
  TESSERA_ASSIGN_OR_RETURN(std::byte * memory,
                           api_.allocate_pinned(std::max<uint64_t>(1, size_bytes)));
  pinned_.push_back(memory);
  return memory;
}

StatusOr<std::byte*> Bench::upload(const std::vector<std::byte>& bytes) {
  TESSERA_ASSIGN_OR_RETURN(std::byte * on_gpu, memory(bytes.size()));
  TESSERA_ASSIGN_OR_RETURN(std::byte * on_host, pinned(bytes.size()));
  if (bytes.empty()) return on_gpu;
  std::memcpy(on_host, bytes.data(), bytes.size());
  TESSERA_RETURN_IF_ERROR(api_.copy(on_gpu, on_host, bytes.size(), stream_));
  return on_gpu;
}

StatusOr<std::vector<std::byte>> Bench::download(const std::byte* from, uint64_t size_bytes) {
  TESSERA_ASSIGN_OR_RETURN(std::byte * on_host, pinned(size_bytes));
  if (size_bytes > 0) TESSERA_RETURN_IF_ERROR(api_.copy(on_host, from, size_bytes, stream_));
  TESSERA_RETURN_IF_ERROR(finish());
  return std::vector<std::byte>(on_host, on_host + size_bytes);
}

Status Bench::finish() {
  TESSERA_RETURN_IF_ERROR(api_.record_event(event_, stream_));
  return wait(event_);
}

Status Bench::wait(EventHandle event) {
  const absl::Time deadline = steady_now() + absl::Seconds(30);
  while (true) {
    TESSERA_ASSIGN_OR_RETURN(const bool done, api_.query_event(event));
    if (done) return absl::OkStatus();
    if (steady_now() > deadline) return absl::DeadlineExceededError("the stream is not done");
    std::this_thread::yield();
  }
}

}  // namespace tessera::cuda
