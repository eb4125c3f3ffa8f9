// SPDX-License-Identifier: Apache-2.0
//
// Executes relayouts: the rows of a RelayoutProgram, one step after another, on the streams.
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/host/kernels.h"
#include "dtensor/dtensor.h"
#include "dtensor/program.h"
#include "dtensor/tensor_rep.h"

namespace tessera {
namespace {

using internal::TensorRep;
// By ordinal: what each local device holds between two steps.
using Buffers = std::map<int, std::shared_ptr<const Buffer>>;

// Copies what a device takes from its own buffer, on its stream.
void enqueue_local(Runtime& runtime, const DeviceStep& row, DType dtype, const std::string& label,
                   std::shared_ptr<const Buffer> in, std::shared_ptr<Buffer> out) {
  // The program that holds `row` may be dropped from the cache while the task waits: copy it.
  runtime.stream(row.ordinal).enqueue(label, [row, dtype, in, out]() -> Status {
    Status status = in == nullptr ? absl::OkStatus() : in->ready().wait();
    if (status.ok()) {
      if (row.fill.has_value()) {
        internal::fill_identity(dtype, *row.fill, out->mutable_data(), row.new_box->num_elements());
      }
      for (const Pull& pull : row.pulls) {
        host::copy_box(pull.box, {in->data(), pull.source_box}, {out->mutable_data(), *row.new_box},
                       dtype_size(dtype));
      }
    }
    out->mutable_ready().set(status);
    return status;
  });
}

void enqueue_collective(const DeviceStep& row, const std::string& label,
                        std::shared_ptr<const Buffer> in, std::shared_ptr<Buffer> out,
                        const Status& error) {
  CollectiveCall call = row.call;
  call.label = label;
  call.error = error;
  if (in != nullptr) call.in = in->data();
  if (out != nullptr) call.out = out->mutable_data();
  call.in_buffer = std::move(in);
  call.out_buffer = std::move(out);
  row.group->start(row.position, std::move(call));
}

// Runs one step of one device: from what it holds to what it holds next (null: nothing).
std::shared_ptr<const Buffer> run_row(Runtime& runtime, const DeviceStep& row, DType dtype,
                                      const std::string& label,
                                      const std::shared_ptr<const Buffer>& in) {
  if (row.keeps_buffer) return in;
  if (row.group == nullptr && !row.new_box.has_value()) return nullptr;
  std::shared_ptr<Buffer> out;
  Status error;
  if (row.new_box.has_value()) {
    StatusOr<std::shared_ptr<Buffer>> buffer =
        Buffer::allocate(runtime.pool(), row.new_box->num_elements() * dtype_size(dtype));
    // The others wait for this device: it takes part with its error.
    if (!buffer.ok()) error = buffer.status();
    out = buffer.ok() ? *std::move(buffer) : Buffer::failed(error);
  }
  if (row.group != nullptr) {
    enqueue_collective(row, label, in, out, error);
  } else if (error.ok()) {
    enqueue_local(runtime, row, dtype, label, in, out);
  }
  return out;
}

StatusOr<TensorRep> start_relayout(const TensorRep& from, LayoutArg to) {
  TESSERA_RETURN_IF_ERROR(from.error);
  TESSERA_ASSIGN_OR_RETURN(TensorRep result, internal::new_tensor(from.dtype, from.shape, to));
  if (result.runtime != from.runtime) {
    return absl::InvalidArgumentError(
        absl::StrCat("relayout to ", to->to_string_with_mesh(),
                     ", a mesh of another client than the tensor's; use meshes of one client"));
  }
  Runtime& runtime = *from.runtime;
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<const RelayoutProgram> program,
                           runtime.relayout_program(*from.layout, *to, from.shape, from.dtype));
  Buffers buffers;
  for (size_t i = 0; i < from.devices.size(); ++i) {
    buffers[from.devices[i].ordinal] = from.buffers[i];
  }
  if (!program->steps.empty()) {
    const std::string label =
        absl::StrCat("relayout #", runtime.next_op_number(), " ", program->plan.to_string());
    for (const std::vector<DeviceStep>& rows : program->steps) {
      for (const DeviceStep& row : rows) {
        std::shared_ptr<const Buffer>& held = buffers[row.ordinal];
        held = run_row(runtime, row, from.dtype, label, held);
      }
    }
  }
  for (const LocalDevice& device : result.devices) {
    result.buffers.push_back(buffers[device.ordinal]);
  }
  return result;
}

}  // namespace

DTensor relayout(const DTensor& tensor, LayoutArg layout) {
  const TensorRep& from = tensor.rep();
  StatusOr<TensorRep> result = start_relayout(from, layout);
  if (!result.ok()) {
    return internal::failed_tensor(from.dtype, from.shape, layout, result.status());
  }
  return std::move(*result).into_tensor();
}

}  // namespace tessera
