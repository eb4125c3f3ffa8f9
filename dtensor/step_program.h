// SPDX-License-Identifier: Apache-2.0
//
// StepProgram: steps that the devices of this client run one after another, each from the buffer of
// the step before. Relayouts (program.h) and fetches (fetch_program.h) are StepPrograms. Internal
// to dtensor/.
//
// Its rows have the groups in which devices meet and their work there; running a program only
// allocates the outputs and enqueues. Immutable, shared, cached by Programs.
#ifndef TESSERA_DTENSOR_STEP_PROGRAM_H_
#define TESSERA_DTENSOR_STEP_PROGRAM_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "collectives/collective.h"
#include "collectives/group_backend.h"
#include "collectives/shared.h"
#include "device/buffer.h"
#include "device/device.h"

namespace tessera {

class Runtime;

// The client that runs a program.
struct ProgramClient {
  absl::Span<const Device> devices;  // of the job, by id
  absl::Span<const Device> local_devices;
  // Whether its devices' memory is the host's, so that the calling thread may run a program.
  bool uses_host_memory = true;
  absl::FunctionRef<StatusOr<std::shared_ptr<GroupBackend>>(absl::Span<const int> device_ids)>
      group;
};

// One local device's part of one step.
struct DeviceStep {
  int ordinal = 0;
  std::optional<Box> old_box;
  std::optional<Box> new_box;
  // The device already holds its new box and nothing else: the buffer is passed on.
  bool keeps_buffer = false;
  // The device holds its new box in one piece, that many bytes after the beginning of its buffer:
  // the result may be a view of that buffer.
  std::optional<int64_t> view_offset_bytes;
  // The group in which the device does its part, perhaps as the only member. Null where it passes
  // its buffer on, or has no new box and no peers.
  std::shared_ptr<GroupBackend> group;
  // Why this client could not make the group. The step fails with it, and the steps after it still
  // run: they pass the error to the members of their groups, which would otherwise wait for this
  // client.
  Status group_error;
  void set_group(StatusOr<std::shared_ptr<GroupBackend>> made) {
    group_error = made.status();
    if (made.ok()) group = *std::move(made);
  }
  Collective::Ptr collective;
  SharedText detail;  // text equal on all members: the plan and the step, or the call
  absl::string_view detail_field = "layouts";  // its name in messages
  // By position; null where some members belong to another client. Rows of a group share one list.
  std::shared_ptr<const std::vector<int>> member_ordinals;
};

struct StepProgram {
  SharedText text;                             // for messages
  std::vector<std::vector<DeviceStep>> steps;  // by step, by local device
  // The calling thread may run all of it: no other client takes part, and it copies fewer bytes
  // than a copy moves in the time of waking another thread.
  bool runs_on_caller = false;
  // Every row can be a view: where the caller keeps the source, there is nothing to run.
  bool is_view = false;

  // The number of its rows and pulls, which is the cost of keeping it. A list of pulls that rows
  // share counts once.
  int64_t weight() const;
  // Whether a group could not be made. It may be possible later: such a program is not kept.
  bool lacks_groups() const;
  // Whether the calling thread may run these steps of elements of this type, as above.
  bool is_for_caller(DType dtype) const;
};

// The box of a member without a part on one side.
inline const Box kNothing = {{0}, {0}};

// The buffer that a local device holds between two steps.
struct Held {
  std::shared_ptr<const Buffer> buffer;
  // The buffer, or the buffer that it views, is the source's, and the caller keeps the source. A
  // result may share such memory at no cost. Other memory is released as soon as a step has read
  // it, which a view of it would prevent.
  bool is_kept = false;
};
// By ordinal.
using HeldByDevice = absl::InlinedVector<Held, 8>;

// Makes views of the devices' buffers. Requires StepProgram::is_view and a source that is kept.
void view_all(const StepProgram& program, DType dtype, HeldByDevice& held);
// Gives the local devices the steps of a program; `held` has their buffers before, and after the
// call their last ones. `kind` (a literal) and the number name the operation in messages. Requires
// a turn.
void run_steps(Runtime& runtime, std::shared_ptr<const StepProgram> program, DType dtype,
               const char* kind, uint64_t number, HeldByDevice& held);

}  // namespace tessera

#endif  // TESSERA_DTENSOR_STEP_PROGRAM_H_
