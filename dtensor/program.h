// SPDX-License-Identifier: Apache-2.0
//
// RelayoutProgram: a RelayoutPlan made ready to run by this client's devices. Internal to dtensor/.
//
// The rows of the local devices are taken from the plan once, with the groups that they meet in;
// running it only allocates the outputs and enqueues. Immutable, shared, cached by Runtime.
#ifndef TESSERA_DTENSOR_PROGRAM_H_
#define TESSERA_DTENSOR_PROGRAM_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "base/shape.h"
#include "base/status.h"
#include "collectives/collective.h"
#include "collectives/group.h"
#include "collectives/shared.h"
#include "device/device.h"
#include "dtensor/replicas.h"
#include "relayout/plan.h"

namespace tessera {

// The client that runs a program.
struct ProgramClient {
  absl::Span<const Device> devices;  // of the job, by id
  absl::Span<const Device> local_devices;
  // Whether its devices' memory is the host's, so that the calling thread may run a program.
  bool uses_host_memory = true;
  absl::FunctionRef<StatusOr<std::shared_ptr<GroupBackend>>(absl::Span<const int> device_ids)>
      group;
};

// What one local device does in one step.
struct DeviceStep {
  int ordinal = 0;
  std::optional<Box> old_box;
  std::optional<Box> new_box;
  // The device already holds its new box and nothing else: the buffer is passed on.
  bool keeps_buffer = false;
  // The device holds its new box in one piece, that many bytes after the beginning of its buffer:
  // the result may be a view of that buffer.
  std::optional<int64_t> view_offset_bytes;
  // What it does with the members of the group, of which it may be the only one. Null where it
  // passes its buffer on, or has no new box and no peers.
  std::shared_ptr<GroupBackend> group;
  Collective::Ptr collective;
  SharedText detail;  // the plan and the step, which all members must have in common
  // By position; null where some of the group are another client's. Rows of a group have one list.
  std::shared_ptr<const std::vector<int>> member_ordinals;
};

struct RelayoutProgram {
  RelayoutPlan plan;
  SharedText text;                             // plan.to_string()
  std::vector<std::vector<DeviceStep>> steps;  // by step of the plan, by local device
  // The calling thread may run all of it: no other client takes part, and it copies fewer bytes
  // than pass by until another thread could be woken.
  bool runs_on_caller = false;
  // Every row can be a view: where the caller keeps the source, there is nothing to run.
  bool is_view = false;

  static StatusOr<std::shared_ptr<const RelayoutProgram>> create(const ProgramClient& client,
                                                                 RelayoutPlan plan,
                                                                 Replicas replicas);
  // How many rows and pulls it holds, which is what it costs to keep. A list of pulls that rows
  // have in common counts once.
  int64_t weight() const;
};

}  // namespace tessera

#endif  // TESSERA_DTENSOR_PROGRAM_H_
