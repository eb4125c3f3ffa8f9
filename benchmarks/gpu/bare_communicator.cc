// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/gpu/bare_communicator.h"

#include <cstddef>
#include <thread>

#include "device/cuda/cuda_device.h"
#include "dtensor/client_hooks.h"
#include "dtensor/runtime.h"

namespace tessera::benchmarks {

StatusOr<std::unique_ptr<BareCommunicator>> BareCommunicator::create(
    const Client& client, std::shared_ptr<nccl::Api> nccl, nccl::UniqueId& id, int64_t bytes) {
  TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1}));
  const cuda::CudaQueue& queue =
      dynamic_cast<cuda::CudaDevice&>(internal::runtime_of(client)->device(0)).queue();
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Gpu> gpu, Gpu::create(queue.api(), queue.gpu()));
  std::unique_ptr<BareCommunicator> self(
      new BareCommunicator(std::move(nccl), group, std::move(gpu)));
  const auto allocate = [&](int64_t size) -> StatusOr<absl::Span<uint8_t>> {
    TESSERA_ASSIGN_OR_RETURN(std::byte* const memory, self->gpu_->allocate(size));
    return absl::Span<uint8_t>(reinterpret_cast<uint8_t*>(memory), static_cast<size_t>(size));
  };
  TESSERA_ASSIGN_OR_RETURN(self->in_, allocate(bytes));
  TESSERA_ASSIGN_OR_RETURN(self->out_, allocate(kClients * bytes));
  if (client.client_id() == 0) {
    TESSERA_ASSIGN_OR_RETURN(id, self->nccl_->get_unique_id());
  }
  TESSERA_RETURN_IF_ERROR(self->meet());
  TESSERA_RETURN_IF_ERROR(self->gpu_->use());
  TESSERA_ASSIGN_OR_RETURN(self->comm_,
                           self->nccl_->comm_init_rank(kClients, id, client.client_id()));
  TESSERA_RETURN_IF_ERROR(self->settle());
  return self;
}

BareCommunicator::~BareCommunicator() {
  gpu_->use().IgnoreError();
  if (comm_ != nullptr) nccl_->comm_abort(comm_).IgnoreError();
}

// A non-blocking communicator accepts no call before the last call is complete. Only a group
// guarantees that the communicator has submitted its work to the stream.
Status BareCommunicator::settle() {
  while (true) {
    TESSERA_ASSIGN_OR_RETURN(const bool through, nccl_->poll(comm_));
    if (through) return absl::OkStatus();
    std::this_thread::yield();
  }
}

Status BareCommunicator::all_gather() {
  TESSERA_RETURN_IF_ERROR(nccl_->group_start());
  TESSERA_RETURN_IF_ERROR(
      nccl_->all_gather(in_bytes(), out_bytes(), in_.size(), comm_, gpu_->stream()));
  TESSERA_RETURN_IF_ERROR(nccl_->group_end());
  return settle();
}

Status BareCommunicator::broadcast() {
  TESSERA_RETURN_IF_ERROR(nccl_->group_start());
  TESSERA_RETURN_IF_ERROR(
      nccl_->broadcast(in_bytes(), out_bytes(), in_.size(), 0, comm_, gpu_->stream()));
  TESSERA_RETURN_IF_ERROR(nccl_->group_end());
  return settle();
}

}  // namespace tessera::benchmarks
