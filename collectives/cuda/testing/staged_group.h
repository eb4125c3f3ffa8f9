// SPDX-License-Identifier: Apache-2.0
//
// StagedGroup: a group of GPUs for callers whose memory is the host's, for the conformance suite.
//
// The memory of every run is copied to the member's GPU before the run. Memory that the run may
// have written is copied back when its Work has been waited for. Where in and out overlap on the
// host they also overlap on the GPU, byte for byte.
#ifndef TESSERA_COLLECTIVES_CUDA_TESTING_STAGED_GROUP_H_
#define TESSERA_COLLECTIVES_CUDA_TESTING_STAGED_GROUP_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "collectives/arguments.h"
#include "collectives/collective.h"
#include "collectives/group_backend.h"
#include "device/buffer.h"
#include "device/cuda/api.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/slab_pool.h"

namespace tessera::cuda {

// A queue and memory of their own, so that staging waits for no work of the device.
class Stage {
 public:
  static StatusOr<std::shared_ptr<Stage>> create(std::shared_ptr<Api> api, int gpu);

  // New memory of the GPU with the bytes of the host's; null for none.
  StatusOr<std::shared_ptr<Buffer>> upload(const std::byte* from, int64_t num_bytes);
  Status download(std::byte* to, const std::byte* from, int64_t num_bytes);

 private:
  Stage(std::unique_ptr<CudaQueue> queue, std::shared_ptr<SlabPool> memory,
        std::shared_ptr<SlabPool> pinned)
      : queue_(std::move(queue)), memory_(std::move(memory)), pinned_(std::move(pinned)) {}
  Status copy(std::byte* to, const std::byte* from, int64_t num_bytes);

  const std::unique_ptr<CudaQueue> queue_;
  const std::shared_ptr<SlabPool> memory_;
  const std::shared_ptr<SlabPool> pinned_;
};

class StagedGroup : public GroupBackend {
 public:
  StagedGroup(std::shared_ptr<GroupBackend> group, std::shared_ptr<Stage> stage)
      : group_(std::move(group)), stage_(std::move(stage)) {}

  absl::Span<const int> device_ids() const override { return group_->device_ids(); }
  Work start(Collective::Ptr collective, Arguments arguments) override;

 private:
  class StagedWork;
  // Moves the memory of a run to the GPU.
  StatusOr<std::shared_ptr<StagedWork>> stage(const Collective& collective, Arguments* arguments);

  const std::shared_ptr<GroupBackend> group_;
  const std::shared_ptr<Stage> stage_;
  std::mutex mutex_;  // guards works_
  // A Work that was dropped still needs its memory.
  std::vector<std::shared_ptr<StagedWork>> works_;
};

}  // namespace tessera::cuda

#endif  // TESSERA_COLLECTIVES_CUDA_TESTING_STAGED_GROUP_H_
