// SPDX-License-Identifier: Apache-2.0
#include "dtensor/local_map.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/exception_status.h"
#include "device/buffer.h"
#include "device/local_device.h"
#include "dtensor/tensor_access.h"
#include "dtensor/tensor_rep.h"
#include "dtensor/view_errors.h"

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

void LocalContext::report_missing(int index) const {
  errors_->report(absl::InvalidArgumentError(
      absl::StrCat("input ", index, " does not exist; ", num_inputs(),
                   num_inputs() == 1 ? " input was" : " inputs were", " given")));
}

const Box& LocalContext::input_box(int index) const {
  if (has_input(index)) return inputs_[index].box;
  report_missing(index);
  return errors_->missing_box(output_box_);
}

internal::RawShard LocalContext::raw_input(int index, DType dtype) {
  internal::RawShard raw;
  if (!has_input(index)) {
    report_missing(index);
    raw.box = errors_->missing_box(output_box_);
    raw.buffer = Buffer::failed(errors_->first());
    index = num_inputs();
  } else {
    raw = inputs_[index];
    if (input_dtypes_[index] == dtype) return raw;
    errors_->report(
        absl::InvalidArgumentError(absl::StrCat("input ", index, " read as ", dtype_name(dtype),
                                                ", and it is ", dtype_name(input_dtypes_[index]))));
  }
  raw.data = errors_->memory(index, raw.box.num_elements());
  return raw;
}

std::byte* LocalContext::raw_output(DType dtype) {
  if (output_dtype_ == dtype) return output_;
  errors_->report(absl::InvalidArgumentError(absl::StrCat(
      "output written as ", dtype_name(dtype), ", and it is ", dtype_name(output_dtype_))));
  return errors_->memory(-1, output_box_.num_elements());
}

namespace internal {

class LocalMapPart {
 public:
  // The task of device `device` of `out`, with its output in `result`.
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
    int64_t most_elements = context->output_box_.num_elements();
    for (const RawShard& input : context->inputs_) {
      most_elements = std::max(most_elements, input.box.num_elements());
    }
    context->errors_ = std::make_shared<ViewErrors>(local, most_elements);
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
    const Status returned = call(fn, context);
    // Requests for missing views come first: an error of the function may follow from them.
    Status status = context.errors_->first();
    status.Update(returned);
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
  StatusOr<std::shared_ptr<TensorRep>> made =
      internal::new_tensor(out_dtype, out_shape, out_layout);
  Status status = made.status();
  if (status.ok() && fn.is_empty()) {
    status =
        absl::InvalidArgumentError("local_map: the function is empty; give one that can be called");
  }
  if (status.ok()) status = check_inputs(**made, inputs);
  if (!status.ok()) return internal::TensorAccess::failed(out_dtype, out_shape, out_layout, status);
  TensorRep& out = **made;
  struct Part {
    Stream* stream;
    Stream::Task task;
  };
  absl::InlinedVector<Part, kInlineLocalDevices> parts;
  for (const MeshDevice& device : out.devices) {
    StatusOr<std::shared_ptr<Buffer>> buffer =
        out.runtime->device(device.ordinal)
            .new_buffer(num_bytes(out.box_of(device).sizes, out_dtype));
    if (!buffer.ok()) {
      out.buffers.push_back(Buffer::failed(buffer.status()));
      continue;
    }
    out.buffers.push_back(*buffer);
    parts.push_back({&out.runtime->device(device.ordinal).stream(),
                     internal::LocalMapPart::create(out, device, inputs, fn, *std::move(buffer))});
  }
  // All that calls functions of the user's, as a copy of `fn` does, comes before the turn.
  const StatusOr<Turn> turn = out.runtime->turns().take();
  if (!turn.ok()) {
    return internal::TensorAccess::failed(out_dtype, out_shape, out_layout, turn.status());
  }
  for (Part& part : parts) part.stream->enqueue("local_map", std::move(part.task));
  return internal::TensorAccess::make(*std::move(made));
}

}  // namespace tessera
