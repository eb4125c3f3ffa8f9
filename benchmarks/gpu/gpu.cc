// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/gpu/gpu.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/time/clock.h"

namespace tessera::benchmarks {

StatusOr<std::unique_ptr<Gpu>> Gpu::create(std::shared_ptr<cuda::Api> api, int index) {
  std::unique_ptr<Gpu> gpu(new Gpu(std::move(api), index));
  TESSERA_RETURN_IF_ERROR(gpu->use());
  TESSERA_RETURN_IF_ERROR(gpu->api_->load_kernels());
  TESSERA_ASSIGN_OR_RETURN(gpu->stream_, gpu->api_->create_stream());
  TESSERA_ASSIGN_OR_RETURN(gpu->event_, gpu->api_->create_event());
  return gpu;
}

Gpu::~Gpu() {
  use().IgnoreError();
  if (stream_ != nullptr) api_->destroy_stream(stream_).IgnoreError();
  if (event_ != nullptr) api_->destroy_event(event_).IgnoreError();
  for (std::byte* const memory : memory_) api_->free(memory).IgnoreError();
}

StatusOr<std::byte*> Gpu::allocate(int64_t size_bytes) {
  TESSERA_RETURN_IF_ERROR(use());
  TESSERA_ASSIGN_OR_RETURN(std::byte * memory, api_->allocate(static_cast<uint64_t>(size_bytes)));
  memory_.push_back(memory);
  return memory;
}

StatusOr<std::vector<std::byte>> Gpu::read(const std::byte* from, int64_t size_bytes) {
  const auto size = static_cast<uint64_t>(size_bytes);
  TESSERA_ASSIGN_OR_RETURN(std::byte* const pinned, api_->allocate_pinned(size));
  Status status = api_->copy(pinned, from, size, stream_);
  if (status.ok()) status = wait();
  std::vector<std::byte> bytes(pinned, pinned + size);
  status.Update(api_->free_pinned(pinned));
  TESSERA_RETURN_IF_ERROR(status);
  return bytes;
}

Status Gpu::wait() {
  TESSERA_RETURN_IF_ERROR(api_->record_event(event_, stream_));
  while (true) {
    TESSERA_ASSIGN_OR_RETURN(const bool done, api_->query_event(event_));
    if (done) return absl::OkStatus();
    std::this_thread::yield();
  }
}

StatusOr<absl::Duration> Gpu::time(int repeats, absl::FunctionRef<Status()> give) {
  TESSERA_RETURN_IF_ERROR(wait());
  const absl::Time start = absl::Now();
  for (int i = 0; i < repeats; ++i) TESSERA_RETURN_IF_ERROR(give());
  TESSERA_RETURN_IF_ERROR(wait());
  return (absl::Now() - start) / repeats;
}

}  // namespace tessera::benchmarks
