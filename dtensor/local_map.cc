// SPDX-License-Identifier: Apache-2.0
#include "dtensor/local_map.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/exception_status.h"
#include "device/buffer.h"
#include "device/local_device.h"
#include "dtensor/tensor_access.h"
#include "dtensor/tensor_rep.h"
#include "dtensor/view_errors.h"

namespace tessera {
namespace {

using internal::TensorRep;

Status other_client_error(absl::string_view what, const Mesh& mesh, const Mesh& out_mesh) {
  return absl::InvalidArgumentError(absl::StrCat("local_map: ", what, " is on ", mesh.to_string(),
                                                 ", a mesh of another client than the output's ",
                                                 out_mesh.to_string(),
                                                 "; use meshes of one client"));
}

Status check_inputs(const TensorRep& out, absl::Span<const DTensor> inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const TensorRep& in = internal::TensorAccess::rep(inputs[i]);
    TESSERA_RETURN_IF_ERROR(internal::TensorAccess::error_of("local_map()", inputs[i]));
    if (in.runtime != out.runtime) {
      return other_client_error(absl::StrCat("input ", i), in.layout->mesh(), out.layout->mesh());
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

// Arguments of an output.
struct OutputArgs {
  const StatusOr<Layout>& layout;
  const Shape& shape;
  DType dtype;
};
using Reps = absl::InlinedVector<std::shared_ptr<TensorRep>, 1>;

// Makes the outputs, which have no buffers yet.
StatusOr<Reps> new_outputs(absl::Span<const OutputArgs> outputs) {
  Reps reps;
  for (size_t k = 0; k < outputs.size(); ++k) {
    StatusOr<std::shared_ptr<TensorRep>> made =
        internal::new_tensor(outputs[k].dtype, outputs[k].shape, outputs[k].layout);
    if (!made.ok()) {
      return outputs.size() == 1
                 ? made.status()
                 : with_context(made.status(), absl::StrCat("local_map: output ", k));
    }
    reps.push_back(*std::move(made));
    const Mesh& mesh = reps[k]->layout->mesh();
    const Mesh& first = reps[0]->layout->mesh();
    if (reps[k]->runtime != reps[0]->runtime) {
      return other_client_error(absl::StrCat("output ", k), mesh, first);
    }
    if (mesh == first) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("local_map: output ", k, " is on ", mesh.to_string(), ", and output 0 on ",
                     first.to_string(), "; give all outputs one mesh"));
  }
  return reps;
}

}  // namespace

void LocalContext::report_missing(absl::string_view what, int index, int given) const {
  errors_->report(
      absl::InvalidArgumentError(absl::StrCat(what, " ", index, " does not exist; ", given, " ",
                                              what, given == 1 ? " was" : "s were", " given")));
}

const Box& LocalContext::input_box(int index) const {
  if (has_input(index)) return inputs_[index].box;
  report_missing("input", index, num_inputs());
  return errors_->missing_box(outputs_[0].box);
}

const Box& LocalContext::output_box(int index) const {
  if (has_output(index)) return outputs_[index].box;
  report_missing("output", index, num_outputs());
  return errors_->missing_box(outputs_[0].box);
}

internal::RawShard LocalContext::raw_input(int index, DType dtype) {
  internal::RawShard raw;
  if (!has_input(index)) {
    report_missing("input", index, num_inputs());
    raw.box = errors_->missing_box(outputs_[0].box);
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

std::byte* LocalContext::raw_output(int index, DType dtype) {
  const int view = view_of_output(index);
  if (has_output(index)) {
    const Output& output = outputs_[index];
    if (output.dtype == dtype) return output.data;
    errors_->report(absl::InvalidArgumentError(absl::StrCat(errors_->name_of(view), " written as ",
                                                            dtype_name(dtype), ", and it is ",
                                                            dtype_name(output.dtype))));
  }
  return errors_->memory(view, output_box(index).num_elements());
}

namespace internal {

class LocalMapPart {
 public:
  using Buffers = absl::InlinedVector<std::shared_ptr<Buffer>, 1>;

  // The task of device `device` of the outputs' mesh, which fills `results`.
  static Stream::Task create(absl::Span<const std::shared_ptr<TensorRep>> outputs,
                             const MeshDevice& device, absl::Span<const DTensor> inputs,
                             const LocalFn& fn, Buffers results) {
    const TensorRep& out = *outputs[0];
    auto context = std::make_shared<LocalContext>();
    context->device_id_ = device.device_id;
    context->coordinates_ = out.layout->mesh().coordinates(device.position);
    int64_t most_elements = 0;
    for (const std::shared_ptr<TensorRep>& output : outputs) {
      context->outputs_.push_back({output->box_of(device), output->dtype});
      most_elements = std::max(most_elements, context->outputs_.back().box.num_elements());
    }
    for (const DTensor& input : inputs) {
      const TensorRep& in = TensorAccess::rep(input);
      const int64_t position = *in.layout->mesh().position_of_device(device.device_id);
      context->inputs_.push_back(
          {in.layout->box(*in.shape, position), nullptr, in.buffer_of(device.ordinal)});
      context->input_dtypes_.push_back(in.dtype);
      most_elements = std::max(most_elements, context->inputs_.back().box.num_elements());
    }
    LocalDevice& local = out.runtime->device(device.ordinal);
    context->errors_ =
        std::make_shared<ViewErrors>(local, most_elements, static_cast<int>(outputs.size()));
    context->cuda_stream_ = local.native_stream();
    return [context, fn, &local, results = std::move(results)]() -> Status {
      const Status status = run(local, *context, fn, results);
      local.finish(results, status);
      return status;
    };
  }

 private:
  static Status run(LocalDevice& device, LocalContext& context, const LocalFn& fn,
                    const Buffers& results) {
    for (RawShard& input : context.inputs_) {
      TESSERA_RETURN_IF_ERROR(device.use(*input.buffer));
      input.data = input.buffer->data();
    }
    for (size_t k = 0; k < results.size(); ++k) {
      TESSERA_RETURN_IF_ERROR(results[k]->take_memory());
      context.outputs_[k].data = results[k]->mutable_data();
    }
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

namespace {

// The layout of an output; text is read on the mesh of input 0. Where text cannot be read because
// that input has failed, its error.
StatusOr<Layout> resolve(const LayoutArg& layout, absl::Span<const DTensor> inputs) {
  if (inputs.empty()) return layout.layout();
  StatusOr<Layout> resolved = layout.resolve(inputs[0].layout().mesh());
  const Status& error = internal::TensorAccess::rep(inputs[0]).error;
  return resolved.ok() || error.ok() ? resolved : error;
}

// The buffers of one device, one for each output.
StatusOr<internal::LocalMapPart::Buffers> new_buffers(const Reps& outputs,
                                                      const MeshDevice& device) {
  internal::LocalMapPart::Buffers buffers;
  for (const std::shared_ptr<TensorRep>& output : outputs) {
    TESSERA_ASSIGN_OR_RETURN(
        std::shared_ptr<Buffer> buffer,
        output->runtime->device(device.ordinal)
            .new_buffer(num_bytes(output->box_of(device).sizes, output->dtype)));
    buffers.push_back(std::move(buffer));
  }
  return buffers;
}

// Starts the runs, and gives the outputs their buffers.
Status start(Reps& outputs, absl::Span<const DTensor> inputs, const LocalFn& fn) {
  if (fn.is_empty()) {
    return absl::InvalidArgumentError(
        "local_map: the function is empty; give one that can be called");
  }
  TESSERA_RETURN_IF_ERROR(check_inputs(*outputs[0], inputs));
  Runtime& runtime = *outputs[0]->runtime;
  struct Part {
    Stream* stream;
    Stream::Task task;
  };
  absl::InlinedVector<Part, kInlineLocalDevices> parts;
  for (const MeshDevice& device : outputs[0]->devices) {
    StatusOr<internal::LocalMapPart::Buffers> buffers = new_buffers(outputs, device);
    for (size_t k = 0; k < outputs.size(); ++k) {
      outputs[k]->buffers.push_back(buffers.ok() ? (*buffers)[k]
                                                 : Buffer::failed(buffers.status()));
    }
    if (!buffers.ok()) continue;
    parts.push_back(
        {&runtime.device(device.ordinal).stream(),
         internal::LocalMapPart::create(outputs, device, inputs, fn, *std::move(buffers))});
  }
  // All that calls functions of the user's, as a copy of `fn` does, comes before the turn.
  const StatusOr<Turn> turn = runtime.turns().take();
  TESSERA_RETURN_IF_ERROR(turn.status());
  for (Part& part : parts) part.stream->enqueue("local_map", std::move(part.task));
  return absl::OkStatus();
}

// Calls give(tensor) for each output, in order.
template <class Give>
void map_locally(absl::Span<const OutputArgs> outputs, absl::Span<const DTensor> inputs,
                 const LocalFn& fn, Give give) {
  StatusOr<Reps> reps = new_outputs(outputs);
  Status status = reps.status();
  if (status.ok()) status = start(*reps, inputs, fn);
  for (size_t k = 0; k < outputs.size(); ++k) {
    give(status.ok() ? internal::TensorAccess::make(std::move((*reps)[k]))
                     : internal::TensorAccess::failed(outputs[k].dtype, outputs[k].shape,
                                                      outputs[k].layout, status));
  }
}

}  // namespace

DTensor local_map(const LayoutArg& out_layout, const Shape& out_shape, DType out_dtype,
                  absl::Span<const DTensor> inputs, LocalFn fn) {
  const StatusOr<Layout> layout = resolve(out_layout, inputs);
  const OutputArgs output = {layout, out_shape, out_dtype};
  std::optional<DTensor> result;
  map_locally({&output, 1}, inputs, fn, [&](DTensor made) { result = std::move(made); });
  return *std::move(result);
}

std::vector<DTensor> local_map(absl::Span<const LocalOutput> outputs,
                               absl::Span<const DTensor> inputs, LocalFn fn) {
  std::vector<DTensor> results;
  if (outputs.empty()) return results;
  std::vector<StatusOr<Layout>> layouts;
  for (const LocalOutput& each : outputs) layouts.push_back(resolve(each.layout, inputs));
  std::vector<OutputArgs> args;
  for (size_t k = 0; k < outputs.size(); ++k) {
    args.push_back({layouts[k], outputs[k].shape, outputs[k].dtype});
  }
  map_locally(args, inputs, fn, [&](DTensor made) { results.push_back(std::move(made)); });
  return results;
}

}  // namespace tessera
