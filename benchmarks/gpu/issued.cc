// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/gpu/issued.h"

#include <future>
#include <memory>

#include "absl/time/clock.h"
#include "device/cuda/cuda_device.h"
#include "device/stream.h"
#include "dtensor/client_hooks.h"
#include "dtensor/runtime.h"

namespace tessera::benchmarks {

StatusOr<absl::Time> wait_issued(const Client& client) {
  const auto issued = std::make_shared<std::promise<absl::Time>>();
  internal::runtime_of(client)->device(0).stream().enqueue("the end of a measurement", [issued] {
    issued->set_value(absl::Now());
    return absl::OkStatus();
  });
  return issued->get_future().get();
}

Status wait_done(const Client& client, Gpu& gpu) {
  TESSERA_RETURN_IF_ERROR(wait_issued(client).status());
  auto& device = dynamic_cast<cuda::CudaDevice&>(internal::runtime_of(client)->device(0));
  cuda::CudaQueue& queue = device.queue();
  TESSERA_ASSIGN_OR_RETURN(const cuda::Event end, queue.record());
  TESSERA_RETURN_IF_ERROR(gpu.api().wait_event(gpu.stream(), *end));
  return gpu.wait();
}

}  // namespace tessera::benchmarks
