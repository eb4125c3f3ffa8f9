// SPDX-License-Identifier: Apache-2.0
//
// claim_gpus: clients have GPUs of their own, unless they are told to share them.
//
//   client 0   "0000:19:00.0" --+--> claims of this host's clients --> OK, or the error, on all
//   client 1   "0000:19:00.0" --+
//
// NCCL accepts no two ranks on one GPU, and would report this only at the first collective; and two
// clients that each take all the memory of a GPU exhaust it for each other. So the check runs when
// clients connect. It compares the places of the GPUs (cuda::Api::bus_id()), because numbers differ
// between processes with different $CUDA_VISIBLE_DEVICES.
#ifndef TESSERA_COLLECTIVES_PLATFORM_GPU_CLAIMS_H_
#define TESSERA_COLLECTIVES_PLATFORM_GPU_CLAIMS_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "job/coordinator/coordinator.h"

namespace tessera {

// Called once by every client of the job, with the bus ids of the GPUs that it uses; none where it
// may share them. FailedPrecondition names the first two clients of this host that use one GPU, and
// the GPU: the same on all clients of the host. Others: a client is lost, or the deadline passes.
Status claim_gpus(Coordinator& coordinator, const std::vector<std::string>& bus_ids,
                  absl::Time deadline);

}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_PLATFORM_GPU_CLAIMS_H_
