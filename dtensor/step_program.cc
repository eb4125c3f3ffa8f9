// SPDX-License-Identifier: Apache-2.0
//
// Executes the rows of a StepProgram, one step after another, on the streams.
#include "dtensor/step_program.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "base/math.h"
#include "collectives/label.h"
#include "collectives/move.h"
#include "dtensor/runtime.h"
#include "dtensor/taken_streams.h"

namespace tessera {
namespace {

// Whether a device finishes a step with the memory that it holds.
bool shares_memory(const DeviceStep& row, const Held& held) {
  return row.keeps_buffer || (row.view_offset_bytes.has_value() && held.is_kept);
}

// Requires shares_memory(). Needs no op: the result is ready when the buffer is.
void share_memory(const DeviceStep& row, DType dtype, Held& held) {
  if (row.keeps_buffer) return;
  held.buffer = Buffer::view(std::move(held.buffer), *row.view_offset_bytes,
                             num_bytes(row.new_box->sizes, dtype));
}

// A program (a relayout, or a fetch) on its way to the streams.
struct Launch {
  Runtime& runtime;
  // Its rows are used by tasks that may outlive the cache it comes from.
  std::shared_ptr<const StepProgram> program;
  DType dtype;
  Label label;
};

// Runs one step of one device: from its buffer to its next buffer. The output acquires its memory
// when the stream runs the step. By then all steps except the previous one have released theirs, so
// that the device never holds more than RelayoutPlan::peak_bytes().
void run_row(const Launch& launch, const DeviceStep& row, Held& held) {
  if (shares_memory(row, held)) return share_memory(row, launch.dtype, held);
  std::shared_ptr<const Buffer> in = std::exchange(held, Held()).buffer;
  if (!row.group_error.ok()) {
    const Status error = with_context(row.group_error, launch.label.to_string());
    if (row.new_box.has_value()) held.buffer = Buffer::failed(error);
    return;
  }
  if (row.group == nullptr && !row.new_box.has_value()) return;
  std::shared_ptr<Buffer> out;
  if (row.new_box.has_value()) {
    out = Buffer::deferred(launch.runtime.device(row.ordinal).memory(),
                           num_bytes(row.new_box->sizes, launch.dtype));
  }
  held.buffer = out;
  row.group->start(row.collective, {.in_buffer = std::move(in),
                                    .out_buffer = std::move(out),
                                    .detail = row.detail,
                                    .detail_field = row.detail_field,
                                    .label = launch.label});
}

// Runs a device's part of one step, from `held` into `made`, on this thread.
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
          runtime.device(lender).new_buffer(num_bytes(row.new_box->sizes, dtype));
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

// Runs the steps that this thread may run by itself if nothing is before them. Returns how many
// steps it ran. Requires a turn, which the caller keeps until the devices have the remaining steps.
size_t run_here(Runtime& runtime, const StepProgram& program, DType dtype, HeldByDevice& held) {
  if (!program.runs_on_caller) return 0;
  TakenStreams streams;
  absl::InlinedVector<bool, 8> taken(held.size());
  for (const std::vector<DeviceStep>& rows : program.steps) {
    for (const DeviceStep& row : rows) {
      const Buffer* in = held[row.ordinal].buffer.get();
      if (in != nullptr && (!in->ready().done() || !in->ready().status().ok())) return 0;
      if (std::exchange(taken[row.ordinal], true)) continue;
      if (!streams.take(runtime.device(row.ordinal).stream())) return 0;
    }
  }
  size_t step = 0;
  while (step < program.steps.size() && run_step_here(runtime, program.steps[step], dtype, held)) {
    ++step;
  }
  return step;
}

}  // namespace

int64_t StepProgram::weight() const {
  int64_t weight = 1;
  absl::flat_hash_set<const BoxPull*> counted;
  for (const std::vector<DeviceStep>& rows : steps) {
    for (const DeviceStep& row : rows) {
      ++weight;
      if (row.group == nullptr) continue;
      const BoxPulls& pulls = row.collective->boxes();
      if (counted.insert(pulls.data()).second) weight += static_cast<int64_t>(pulls.size());
    }
  }
  return weight;
}

bool StepProgram::lacks_groups() const {
  return std::any_of(steps.begin(), steps.end(), [](const std::vector<DeviceStep>& rows) {
    return std::any_of(rows.begin(), rows.end(),
                       [](const DeviceStep& row) { return !row.group_error.ok(); });
  });
}

bool StepProgram::is_for_caller(DType dtype) const {
  if (lacks_groups()) return false;
  constexpr int64_t kMostBytes = 32 << 10;
  int64_t written = 0;
  for (const std::vector<DeviceStep>& rows : steps) {
    for (const DeviceStep& row : rows) {
      if (row.group != nullptr && row.member_ordinals == nullptr) return false;
      if (row.new_box.has_value()) {
        written = saturating_add(written, num_bytes(row.new_box->sizes, dtype));
      }
    }
  }
  return written <= kMostBytes;
}

void view_all(const StepProgram& program, DType dtype, HeldByDevice& held) {
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

void run_steps(Runtime& runtime, std::shared_ptr<const StepProgram> program, DType dtype,
               const char* kind, uint64_t number, HeldByDevice& held) {
  const size_t done = run_here(runtime, *program, dtype, held);
  if (done == program->steps.size()) return;
  Label label(std::string(kind), number, program->text);
  const Launch launch = {runtime, std::move(program), dtype, std::move(label)};
  for (size_t step = done; step < launch.program->steps.size(); ++step) {
    for (const DeviceStep& row : launch.program->steps[step]) {
      run_row(launch, row, held[row.ordinal]);
    }
  }
}

}  // namespace tessera
