// SPDX-License-Identifier: Apache-2.0
#include "dtensor/device_op.h"

#include <utility>

#include "absl/container/inlined_vector.h"
#include "device/local_device.h"
#include "dtensor/step_program.h"
#include "dtensor/taken_streams.h"
#include "dtensor/tensor_access.h"
#include "dtensor/tensor_rep.h"
#include "mesh/mesh_runtime.h"

namespace tessera::internal {
namespace {

constexpr size_t kInlineInputs = 8;
using InputBuffers = absl::InlinedVector<std::shared_ptr<const Buffer>, kInlineInputs>;

// The most bytes of an op that the caller may run: to read and write them takes less time than to
// wake a thread.
constexpr int64_t kMostBytesOnCaller = 32 << 10;

// One device's part of a call.
struct Part {
  const DeviceRow* row;
  InputBuffers in;
  std::shared_ptr<Buffer> out;
};
using Parts = absl::InlinedVector<Part, kInlineLocalDevices>;

Status run_part(LocalDevice& device, const DeviceKernel& kernel, const Part& part) {
  absl::InlinedVector<const std::byte*, kInlineInputs> in;
  for (const std::shared_ptr<const Buffer>& buffer : part.in) {
    TESSERA_RETURN_IF_ERROR(device.use(*buffer));
    in.push_back(buffer->data());
  }
  TESSERA_RETURN_IF_ERROR(part.out->take_memory());
  return kernel(device.engine(), *part.row, in, part.out->mutable_data());
}

// Runs all parts on this thread if the inputs are ready and the devices idle. Requires a turn.
bool run_here(const Runtime& runtime, const DeviceProgram& program, const Parts& parts) {
  if (!program.runs_on_caller) return false;
  TakenStreams streams;
  for (const Part& part : parts) {
    for (const std::shared_ptr<const Buffer>& in : part.in) {
      if (!in->ready().done()) return false;
    }
    if (!streams.take(runtime.device(part.row->ordinal).stream())) return false;
  }
  for (const Part& part : parts) {
    LocalDevice& device = runtime.device(part.row->ordinal);
    device.finish(part.out, run_part(device, program.kernel, part));
  }
  return true;
}

// An input of which devices fetch parts.
struct FetchedInput {
  size_t number;
  std::shared_ptr<const StepProgram> program;
  // The buffers that the devices hold of the input, and later the buffers that they have fetched:
  // null where they fetch nothing.
  HeldByDevice held;
};
using FetchedInputs = std::vector<FetchedInput>;

StatusOr<FetchedInputs> find_fetches(Runtime& runtime, const DeviceProgram& program,
                                     absl::Span<const DTensor> inputs) {
  FetchedInputs fetched;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (program.fetches[i] == nullptr) continue;
    FetchedInput& input = fetched.emplace_back();
    input.number = i;
    TESSERA_ASSIGN_OR_RETURN(input.program, runtime.programs().fetch(program.fetches[i]));
    input.held.resize(runtime.devices().local().size());
    const TensorRep& rep = TensorAccess::rep(inputs[i]);
    for (const DeviceStep& row : input.program->steps[0]) {
      for (size_t d = 0; d < rep.devices.size(); ++d) {
        if (rep.devices[d].ordinal == row.ordinal) {
          input.held[row.ordinal] = {rep.buffers[d], true};
        }
      }
    }
  }
  return fetched;
}

}  // namespace

TensorFacts facts_of(const DTensor& tensor) {
  const TensorRep& rep = TensorAccess::rep(tensor);
  if (rep.runtime == nullptr) return {rep.error};
  return {rep.error, rep.runtime->number(), rep.runtime->devices().uses_host_memory(),
          rep.runtime->job().arithmetic()};
}

bool is_same_tensor(const DTensor& a, const DTensor& b) {
  return &TensorAccess::rep(a) == &TensorAccess::rep(b);
}

void* op_state_of(const DTensor& tensor, absl::FunctionRef<std::shared_ptr<void>()> make) {
  return TensorAccess::rep(tensor).runtime->op_state(make);
}

PlanOptions plan_options_of(const DTensor& tensor) {
  return TensorAccess::rep(tensor).runtime->job().plan_options();
}

DTensor failed_tensor(DType dtype, const Shape& shape, const StatusOr<Layout>& layout,
                      Status error) {
  return TensorAccess::failed(dtype, shape, layout, std::move(error));
}

const std::shared_ptr<const Trace>& trace_of(const DTensor& tensor) {
  return TensorAccess::rep(tensor).trace;
}

DTensor with_trace(const DTensor& tensor, std::shared_ptr<const Trace> trace) {
  TensorRep rep = TensorAccess::rep(tensor);
  rep.trace = std::move(trace);
  return TensorAccess::make(std::move(rep));
}

std::shared_ptr<const DeviceProgram> make_device_program(absl::Span<const DTensor> inputs,
                                                         absl::Span<const DeviceInput> used,
                                                         DType dtype, Shape shape,
                                                         const Layout& layout, DeviceKernel kernel,
                                                         std::string explanation, bool calls_user) {
  const TensorRep& first = TensorAccess::rep(inputs[0]);
  auto program = std::make_shared<DeviceProgram>(
      DeviceProgram{dtype,
                    std::move(shape),
                    *layout.with_mesh(internal::with_runtime(layout.mesh(), nullptr)),
                    std::move(kernel),
                    std::make_shared<const std::string>(std::move(explanation)),
                    {},
                    {},
                    false});
  for (const DeviceInput& input : used) program->fetches.push_back(input.fetch);
  int64_t bytes = 0;
  for (const MeshDevice& device : first.devices) {
    DeviceRow& row = program->rows.emplace_back();
    row.ordinal = device.ordinal;
    row.position = device.position;
    for (size_t i = 0; i < inputs.size(); ++i) {
      row.in.push_back(used[i].fetch != nullptr
                           ? used[i].fetch->box(device.position)
                           : used[i].layout.box(inputs[i].shape(), device.position));
      bytes += num_bytes(row.in.back().sizes, inputs[i].dtype());
    }
    row.out = layout.box(program->shape, device.position);
    bytes += num_bytes(row.out.sizes, dtype);
  }
  program->runs_on_caller =
      first.runtime->devices().uses_host_memory() && bytes <= kMostBytesOnCaller && !calls_user;
  return program;
}

DTensor explained_as(const DTensor& tensor, const DeviceProgram& program) {
  TensorRep rep = TensorAccess::rep(tensor);
  rep.explanation = program.explanation;
  return TensorAccess::make(std::move(rep));
}

DTensor run_on_devices(const char* label, std::shared_ptr<const DeviceProgram> program,
                       absl::Span<const DTensor> inputs) {
  const TensorRep& first = TensorAccess::rep(inputs[0]);
  const std::shared_ptr<Runtime>& runtime = first.runtime;
  auto result = std::make_shared<TensorRep>();
  TensorRep& out = *result;
  out.dtype = program->dtype;
  out.shape = program->shape;
  out.runtime = runtime;
  out.devices = first.devices;
  out.explanation = program->explanation;
  // Layouts of the cache have no runtime; the layout of an input saves making another.
  for (const DTensor& input : inputs) {
    if (input.layout() == program->layout) out.layout = input.layout();
  }
  if (!out.layout.has_value()) out.layout = *program->layout.with_mesh(first.layout->mesh());
  StatusOr<FetchedInputs> fetched = find_fetches(*runtime, *program, inputs);
  if (!fetched.ok()) {
    return TensorAccess::failed(out.dtype, *out.shape, *out.layout, fetched.status());
  }
  Parts parts;
  for (size_t d = 0; d < program->rows.size(); ++d) {
    const DeviceRow& row = program->rows[d];
    StatusOr<std::shared_ptr<Buffer>> buffer =
        runtime->device(row.ordinal).new_buffer(num_bytes(row.out.sizes, program->dtype));
    if (!buffer.ok()) {
      out.buffers.push_back(Buffer::failed(buffer.status()));
      continue;
    }
    Part& part = parts.emplace_back();
    part.row = &row;
    part.out = *std::move(buffer);
    for (const DTensor& input : inputs) {
      part.in.push_back(TensorAccess::rep(input).buffers[d]);
    }
    out.buffers.push_back(part.out);
  }
  const StatusOr<Turn> turn = runtime->turns().take();
  if (!turn.ok()) {
    return TensorAccess::failed(out.dtype, *out.shape, *out.layout, turn.status());
  }
  for (FetchedInput& input : *fetched) {
    run_steps(*runtime, input.program, inputs[input.number].dtype(), label,
              runtime->turns().next_op_number(), input.held);
    for (Part& part : parts) {
      if (input.held[part.row->ordinal].buffer != nullptr) {
        part.in[input.number] = std::move(input.held[part.row->ordinal].buffer);
      }
    }
  }
  if (!run_here(*runtime, *program, parts)) {
    for (Part& part : parts) {
      LocalDevice& device = runtime->device(part.row->ordinal);
      device.stream().enqueue(label, [&device, program, part = std::move(part)] {
        const Status status = run_part(device, program->kernel, part);
        device.finish(part.out, status);
        return status;
      });
    }
  }
  return TensorAccess::make(std::move(result));
}

}  // namespace tessera::internal
