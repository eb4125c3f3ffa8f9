// SPDX-License-Identifier: Apache-2.0
//
// Executes relayouts: the rows of a RelayoutProgram, one step after another, on the streams.
#include "dtensor/relayout.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "collectives/label.h"
#include "collectives/move.h"
#include "dtensor/device_op.h"
#include "dtensor/program.h"
#include "dtensor/taken_streams.h"
#include "dtensor/tensor_access.h"
#include "dtensor/tensor_rep.h"

namespace tessera {
namespace {

using internal::TensorRep;

// What a local device holds between two steps.
struct Held {
  std::shared_ptr<const Buffer> buffer;
  // The buffer, or the one that it is a view of, is the source's, and the caller keeps the source.
  // A result may share such memory: it costs nothing more. Other memory is released as soon as a
  // step has read it, which a view of it would prevent.
  bool is_kept = false;
};
// By ordinal.
using HeldByDevice = absl::InlinedVector<Held, 8>;

// Whether a device comes through a step with the memory that it holds.
bool shares_memory(const DeviceStep& row, const Held& held) {
  return row.keeps_buffer || (row.view_offset_bytes.has_value() && held.is_kept);
}

// Requires shares_memory(). Needs no op: the result is ready when the buffer is.
void share_memory(const DeviceStep& row, DType dtype, Held& held) {
  if (row.keeps_buffer) return;
  held.buffer = Buffer::view(std::move(held.buffer), *row.view_offset_bytes,
                             num_bytes(row.new_box->sizes, dtype));
}

// One relayout on its way to the streams.
struct Launch {
  Runtime& runtime;
  // Its rows are used by tasks that may outlive the cache it comes from.
  std::shared_ptr<const RelayoutProgram> program;
  DType dtype;
  Label label;
};

// Runs one step of one device: from what it holds to what it holds next. The output takes its
// memory when the stream runs the step. By then all steps but the previous one have released
// theirs, so that the device never holds more than RelayoutPlan::peak_bytes().
void run_row(const Launch& launch, const DeviceStep& row, Held& held) {
  if (shares_memory(row, held)) return share_memory(row, launch.dtype, held);
  std::shared_ptr<const Buffer> in = std::exchange(held, Held()).buffer;
  if (row.group == nullptr && !row.new_box.has_value()) return;
  std::shared_ptr<Buffer> out;
  if (row.new_box.has_value()) {
    out = launch.runtime.deferred_buffer(row.ordinal, num_bytes(row.new_box->sizes, launch.dtype));
  }
  held.buffer = out;
  row.group->start(row.collective, {.in_buffer = std::move(in),
                                    .out_buffer = std::move(out),
                                    .detail = row.detail,
                                    .detail_field = "layouts",
                                    .label = launch.label});
}

// What a device does in one step, from `held` into `made`, on this thread.
Status run_row_here(const DeviceStep& row, DType dtype, const HeldByDevice& held,
                    absl::Span<const std::shared_ptr<Buffer>> made) {
  absl::InlinedVector<MemberMemory, kInlineMembers> members;
  members.reserve(row.member_ordinals->size());
  for (const int ordinal : *row.member_ordinals) {
    MemberMemory& member = members.emplace_back();
    if (const Buffer* in = held[ordinal].buffer.get(); in != nullptr) {
      member.in = in->data();
      member.in_count = in->size_bytes() / dtype_size(dtype);
    }
    if (made[ordinal] != nullptr) member.out = made[ordinal]->mutable_data();
  }
  return move_bytes(*row.collective, members);
}

// Runs a step on this thread; not at all where memory is short, which the streams report.
bool run_step_here(Runtime& runtime, const std::vector<DeviceStep>& rows, DType dtype,
                   HeldByDevice& held) {
  absl::InlinedVector<std::shared_ptr<Buffer>, 8> made(held.size());
  for (const DeviceStep& row : rows) {
    if (shares_memory(row, held[row.ordinal]) || !row.new_box.has_value()) continue;
    const absl::Span<const int> replicas = row.collective->replicas();
    const int lender = replicas.empty() ? row.ordinal : (*row.member_ordinals)[replicas[0]];
    if (made[lender] == nullptr) {
      StatusOr<std::shared_ptr<Buffer>> out =
          runtime.new_buffer(lender, num_bytes(row.new_box->sizes, dtype));
      if (!out.ok()) return false;
      made[lender] = *std::move(out);
    }
    made[row.ordinal] = made[lender];
  }
  for (const DeviceStep& row : rows) {
    if (made[row.ordinal] == nullptr) continue;
    if (!run_row_here(row, dtype, held, made).ok()) return false;
  }
  for (const DeviceStep& row : rows) {
    Held& result = held[row.ordinal];
    if (shares_memory(row, result)) {
      share_memory(row, dtype, result);
      continue;
    }
    if (made[row.ordinal] != nullptr) made[row.ordinal]->mutable_ready().set(absl::OkStatus());
    result = {std::move(made[row.ordinal]), false};
  }
  return true;
}

// Runs what this thread may run by itself if nothing is before it. Returns how many steps it ran.
// Requires a turn, which the caller keeps until the devices have the steps that are left.
size_t run_here(Runtime& runtime, const RelayoutProgram& program, DType dtype, HeldByDevice& held) {
  if (!program.runs_on_caller) return 0;
  TakenStreams streams;
  absl::InlinedVector<bool, 8> taken(held.size());
  for (const std::vector<DeviceStep>& rows : program.steps) {
    for (const DeviceStep& row : rows) {
      const Buffer* in = held[row.ordinal].buffer.get();
      if (in != nullptr && (!in->ready().done() || !in->ready().status().ok())) return 0;
      if (std::exchange(taken[row.ordinal], true)) continue;
      if (!streams.take(runtime.stream(row.ordinal))) return 0;
    }
  }
  size_t step = 0;
  while (step < program.steps.size() && run_step_here(runtime, program.steps[step], dtype, held)) {
    ++step;
  }
  return step;
}

// Makes views of what the devices hold. Requires RelayoutProgram::is_view and a source that is
// kept.
void view_all(const RelayoutProgram& program, DType dtype, HeldByDevice& held) {
  for (const std::vector<DeviceStep>& rows : program.steps) {
    for (const DeviceStep& row : rows) {
      Held& result = held[row.ordinal];
      if (row.new_box.has_value()) {
        share_memory(row, dtype, result);
      } else {
        result = Held();
      }
    }
  }
}

// Gives the local devices the steps of a program, from what they hold to what they hold then.
void run_steps(Runtime& runtime, std::shared_ptr<const RelayoutProgram> program, DType dtype,
               uint64_t number, HeldByDevice& held) {
  const size_t done = run_here(runtime, *program, dtype, held);
  if (done == program->steps.size()) return;
  Label label(std::string("relayout"), number, program->text);
  const Launch launch = {runtime, std::move(program), dtype, std::move(label)};
  for (size_t step = done; step < launch.program->steps.size(); ++step) {
    for (const DeviceStep& row : launch.program->steps[step]) {
      run_row(launch, row, held[row.ordinal]);
    }
  }
}

// Unless there is an error, `tensor` is dropped before the first step may end: if it was the last
// reference, the source is released when the first step has read it.
StatusOr<TensorRep> start_relayout(DTensor& tensor, LayoutArg to, Replicas replicas) {
  const TensorRep& from = internal::TensorAccess::rep(tensor);
  TESSERA_RETURN_IF_ERROR(from.error);
  if (to.ok() && to->check_not_moved_from().ok()) {
    TESSERA_RETURN_IF_ERROR(check_ranks(*from.layout, *to));
  }
  TESSERA_ASSIGN_OR_RETURN(TensorRep result, internal::new_tensor(from.dtype, from.shape, to));
  if (result.runtime != from.runtime) {
    return absl::InvalidArgumentError(
        absl::StrCat("relayout to ", to->to_string_with_mesh(),
                     ", a mesh of another client than the tensor's; use meshes of one client"));
  }
  const std::shared_ptr<Runtime> runtime_ref = from.runtime;
  Runtime& runtime = *runtime_ref;
  if (replicas == Replicas::kShared && !runtime.uses_host_memory()) {
    return absl::UnimplementedError(
        absl::StrCat("relayout to ", to->to_string_with_mesh(),
                     ": replicas on GPUs do not share memory yet; use Replicas::kOwn"));
  }
  TESSERA_ASSIGN_OR_RETURN(
      std::shared_ptr<const RelayoutProgram> program,
      runtime.relayout_program({*from.layout, *to, from.shape, from.dtype, replicas}));
  // Of handles, not of buffers: ops that fill a buffer or read it hold it too, for as long as they
  // happen to take.
  const bool is_kept = internal::TensorAccess::has_copies(tensor);
  HeldByDevice held(runtime.local_devices().size());
  for (size_t i = 0; i < from.devices.size(); ++i) {
    held[from.devices[i].ordinal] = {from.buffers[i], is_kept};
  }
  const bool is_view = program->steps.empty() || (program->is_view && is_kept);
  Runtime::Turn turn;
  if (!is_view) {
    TESSERA_ASSIGN_OR_RETURN(turn, runtime.take_turn());
  }
  // No error from here on. Of `from` nothing but the buffers above is used.
  const DType dtype = from.dtype;
  tensor = internal::TensorAccess::make(nullptr);
  // Of every client alike, whether or not its program is a view.
  const uint64_t number = program->steps.empty() ? 0 : runtime.next_op_number();
  if (is_view) {
    view_all(*program, dtype, held);
  } else {
    run_steps(runtime, std::move(program), dtype, number, held);
  }
  for (const MeshDevice& device : result.devices) {
    result.buffers.push_back(std::move(held[device.ordinal].buffer));
  }
  return result;
}

}  // namespace

DTensor relayout(DTensor tensor, LayoutArg layout, Replicas replicas) {
  if (internal::trace_of(tensor) != nullptr) {
    // The source is kept, for its trace.
    const DTensor source = tensor;
    return internal::record_relayout.load()(
        relayout(internal::with_trace(source, nullptr), layout, replicas), source);
  }
  StatusOr<TensorRep> result = start_relayout(tensor, layout, replicas);
  if (!result.ok()) {
    return internal::TensorAccess::failed(tensor.dtype(), tensor.shape(), layout, result.status());
  }
  return internal::TensorAccess::make(*std::move(result));
}

}  // namespace tessera
