// SPDX-License-Identifier: Apache-2.0
#include "dtensor/local_map.h"

#include <memory>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/exception_status.h"
#include "device/local_device.h"
#include "dtensor/tensor_access.h"
#include "dtensor/tensor_rep.h"

namespace tessera {
namespace {

using internal::TensorRep;

Status check_inputs(const TensorRep& out, absl::Span<const DTensor> inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const TensorRep& in = internal::TensorAccess::rep(inputs[i]);
    TESSERA_RETURN_IF_ERROR(in.error);
    if (in.runtime != out.runtime) {
      return absl::InvalidArgumentError(
          absl::StrCat("local_map: input ", i, " is on ", in.layout->mesh().to_string(),
                       ", a mesh of another client than the output's ",
                       out.layout->mesh().to_string(), "; use meshes of one client"));
    }
    for (const MeshDevice& device : out.devices) {
      if (in.buffer_of(device.ordinal) != nullptr) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("local_map: input ", i, " is on ", in.layout->mesh().to_string(),
                       ", where device ", device.device_id, " of the output's mesh ",
                       out.layout->mesh().to_string(), " holds no shard; relayout it first"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

bool LocalContext::check_index(int index) const {
  if (index >= 0 && index < num_inputs()) return true;
  error_.Update(absl::InvalidArgumentError(
      absl::StrCat("input ", index, " does not exist; ", num_inputs(),
                   num_inputs() == 1 ? " input was" : " inputs were", " given")));
  return false;
}

const Box& LocalContext::input_box(int index) const {
  static const Box* const kEmpty = new Box{{0}, {0}};
  return check_index(index) ? inputs_[index].box : *kEmpty;
}

bool LocalContext::check_input(int index, DType dtype) {
  if (!check_index(index)) return false;
  if (input_dtypes_[index] == dtype) return true;
  error_.Update(
      absl::InvalidArgumentError(absl::StrCat("input ", index, " read as ", dtype_name(dtype),
                                              ", and it is ", dtype_name(input_dtypes_[index]))));
  return false;
}

bool LocalContext::check_output(DType dtype) {
  if (output_dtype_ == dtype) return true;
  error_.Update(absl::InvalidArgumentError(absl::StrCat(
      "output written as ", dtype_name(dtype), ", and it is ", dtype_name(output_dtype_))));
  return false;
}

namespace internal {

class LocalMapPart {
 public:
  // What device `device` of `out` runs, with its output in `result`.
  static Stream::Task create(const TensorRep& out, const MeshDevice& device,
                             absl::Span<const DTensor> inputs, const LocalFn& fn,
                             std::shared_ptr<Buffer> result) {
    auto context = std::make_shared<LocalContext>();
    context->device_id_ = device.device_id;
    context->coordinates_ = out.layout->mesh().coordinates(device.position);
    context->output_box_ = out.box_of(device);
    context->output_dtype_ = out.dtype;
    for (const DTensor& input : inputs) {
      const TensorRep& in = TensorAccess::rep(input);
      const int64_t position = *in.layout->mesh().position_of_device(device.device_id);
      context->inputs_.push_back(
          {in.layout->box(*in.shape, position), nullptr, in.buffer_of(device.ordinal)});
      context->input_dtypes_.push_back(in.dtype);
    }
    LocalDevice& local = out.runtime->device(device.ordinal);
    context->cuda_stream_ = local.native_stream();
    return [context, fn, &local, result = std::move(result)]() -> Status {
      const Status status = run(local, *context, fn, *result);
      local.finish(result, status);
      return status;
    };
  }

 private:
  static Status run(LocalDevice& device, LocalContext& context, const LocalFn& fn, Buffer& result) {
    for (RawShard& input : context.inputs_) {
      TESSERA_RETURN_IF_ERROR(device.use(*input.buffer));
      input.data = input.buffer->data();
    }
    TESSERA_RETURN_IF_ERROR(result.take_memory());
    context.output_ = result.mutable_data();
    Status status = call(fn, context);
    status.Update(context.error_);
    return with_context(status, absl::StrCat("local_map on device ", context.device_id_));
  }

  // An exception must not leave the device's thread: that would end the process.
  static Status call(const LocalFn& fn, LocalContext& context) {
    try {
      return fn(context);
    } catch (...) {
      return exception_status();
    }
  }
};

}  // namespace internal

DTensor local_map(LayoutArg out_layout, const Shape& out_shape, DType out_dtype,
                  absl::Span<const DTensor> inputs, LocalFn fn) {
  StatusOr<TensorRep> out = internal::new_tensor(out_dtype, out_shape, out_layout);
  Status status = out.status();
  if (status.ok() && fn.is_empty()) {
    status =
        absl::InvalidArgumentError("local_map: the function is empty; give one that can be called");
  }
  if (status.ok()) status = check_inputs(*out, inputs);
  if (!status.ok()) return internal::TensorAccess::failed(out_dtype, out_shape, out_layout, status);
  struct Part {
    Stream* stream;
    Stream::Task task;
  };
  absl::InlinedVector<Part, kInlineLocalDevices> parts;
  for (const MeshDevice& device : out->devices) {
    StatusOr<std::shared_ptr<Buffer>> buffer =
        out->runtime->new_buffer(device.ordinal, num_bytes(out->box_of(device).sizes, out_dtype));
    if (!buffer.ok()) {
      out->buffers.push_back(Buffer::failed(buffer.status()));
      continue;
    }
    out->buffers.push_back(*buffer);
    parts.push_back({&out->runtime->stream(device.ordinal),
                     internal::LocalMapPart::create(*out, device, inputs, fn, *std::move(buffer))});
  }
  // All that calls functions of the user's, as a copy of `fn` does, comes before the turn.
  const StatusOr<Runtime::Turn> turn = out->runtime->take_turn();
  if (!turn.ok()) {
    return internal::TensorAccess::failed(out_dtype, out_shape, out_layout, turn.status());
  }
  for (Part& part : parts) part.stream->enqueue("local_map", std::move(part.task));
  return internal::TensorAccess::make(*std::move(out));
}

}  // namespace tessera
