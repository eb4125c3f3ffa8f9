// SPDX-License-Identifier: Apache-2.0
//
// BareCommunicator: a client's rank of an NCCL communicator that two clients have in addition to
// their group, and the memory of an all_gather. Measurements compare the two.
//
//   auto bare = BareCommunicator::create(client, nccl, shared->id, 1024);      both clients
//   bare->all_gather();                                                       submitted to a stream
//   bare->group().all_gather<uint8_t>(bare->in(), bare->out());               by the group
//
// For one thread, which must call use() before a call of NCCL.
#ifndef TESSERA_BENCHMARKS_GPU_BARE_COMMUNICATOR_H_
#define TESSERA_BENCHMARKS_GPU_BARE_COMMUNICATOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/types/span.h"
#include "base/status.h"
#include "benchmarks/gpu/gpu.h"
#include "collectives/group.h"
#include "collectives/nccl/api.h"
#include "dtensor/client.h"

namespace tessera::benchmarks {

class BareCommunicator {
 public:
  static constexpr int kClients = 2;

  // Both clients call it. `id` is in shared memory; each client contributes `bytes`.
  static StatusOr<std::unique_ptr<BareCommunicator>> create(const Client& client,
                                                            std::shared_ptr<nccl::Api> nccl,
                                                            nccl::UniqueId& id, int64_t bytes);
  ~BareCommunicator();
  BareCommunicator(const BareCommunicator&) = delete;
  BareCommunicator& operator=(const BareCommunicator&) = delete;

  const Group& group() const { return group_; }
  Status meet() const { return group_.barrier().await(); }
  Gpu& gpu() { return *gpu_; }
  absl::Span<uint8_t> in() const { return in_; }
  absl::Span<uint8_t> out() const { return out_; }

  // Each returns when the communicator accepts the next call.
  Status all_gather();
  Status broadcast();

 private:
  BareCommunicator(std::shared_ptr<nccl::Api> nccl, Group group, std::unique_ptr<Gpu> gpu)
      : nccl_(std::move(nccl)), group_(std::move(group)), gpu_(std::move(gpu)) {}

  Status settle();
  std::byte* in_bytes() { return reinterpret_cast<std::byte*>(in_.data()); }
  std::byte* out_bytes() { return reinterpret_cast<std::byte*>(out_.data()); }

  const std::shared_ptr<nccl::Api> nccl_;
  const Group group_;
  const std::unique_ptr<Gpu> gpu_;
  nccl::CommHandle comm_ = nullptr;
  absl::Span<uint8_t> in_;
  absl::Span<uint8_t> out_;
};

}  // namespace tessera::benchmarks

#endif  // TESSERA_BENCHMARKS_GPU_BARE_COMMUNICATOR_H_
