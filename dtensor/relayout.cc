// SPDX-License-Identifier: Apache-2.0
#include "dtensor/relayout.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/device_op.h"
#include "dtensor/program.h"
#include "dtensor/step_program.h"
#include "dtensor/tensor_access.h"
#include "dtensor/tensor_rep.h"

namespace tessera {
namespace {

using internal::TensorRep;

// Unless there is an error, `tensor` is dropped before the first step may end: if it was the last
// reference, the source is released when the first step has read it.
StatusOr<std::shared_ptr<TensorRep>> start_relayout(DTensor& tensor, const StatusOr<Layout>& to,
                                                    Replicas replicas) {
  const TensorRep& from = internal::TensorAccess::rep(tensor);
  TESSERA_RETURN_IF_ERROR(internal::TensorAccess::error_of("relayout()", tensor));
  if (to.ok()) TESSERA_RETURN_IF_ERROR(check_ranks(*from.layout, *to));
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<TensorRep> result,
                           internal::new_tensor(from.dtype, from.shape, to));
  if (result->runtime != from.runtime) {
    return absl::InvalidArgumentError(
        absl::StrCat("relayout to ", to->to_string_with_mesh(),
                     ", a mesh of another client than the tensor's; use meshes of one client"));
  }
  const std::shared_ptr<Runtime> runtime_ref = from.runtime;
  Runtime& runtime = *runtime_ref;
  if (replicas == Replicas::kShared && !runtime.devices().uses_host_memory()) {
    return absl::UnimplementedError(
        absl::StrCat("relayout to ", to->to_string_with_mesh(),
                     ": replicas on GPUs do not share memory yet; use Replicas::kOwn"));
  }
  TESSERA_ASSIGN_OR_RETURN(
      std::shared_ptr<const RelayoutProgram> program,
      runtime.programs().relayout({*from.layout, *to, from.shape, from.dtype, replicas}));
  // Counts handles, not buffers: ops that fill or read a buffer hold it too, for as long as they
  // take.
  const bool is_kept = internal::TensorAccess::has_copies(tensor);
  HeldByDevice held(runtime.devices().local().size());
  for (size_t i = 0; i < from.devices.size(); ++i) {
    held[from.devices[i].ordinal] = {from.buffers[i], is_kept};
  }
  const bool is_view = program->steps.empty() || (program->is_view && is_kept);
  Turn turn;
  if (!is_view) {
    TESSERA_ASSIGN_OR_RETURN(turn, runtime.turns().take());
  }
  // No error from here on. Only the buffers above are used of `from`.
  const DType dtype = from.dtype;
  tensor = internal::TensorAccess::make(nullptr);
  // Every client takes the number, whether or not its program is a view.
  const uint64_t number = program->steps.empty() ? 0 : runtime.turns().next_op_number();
  if (is_view) {
    view_all(*program, dtype, held);
  } else {
    run_steps(runtime, std::move(program), dtype, "relayout", number, held);
  }
  for (const MeshDevice& device : result->devices) {
    result->buffers.push_back(std::move(held[device.ordinal].buffer));
  }
  return result;
}

}  // namespace

DTensor relayout(DTensor tensor, const LayoutArg& layout, Replicas replicas) {
  if (internal::trace_of(tensor) != nullptr) {
    // The source is kept, for its trace.
    const DTensor source = tensor;
    return internal::trace_of(source)->moved(
        relayout(internal::with_trace(source, nullptr), layout, replicas), source);
  }
  const StatusOr<Layout> to = layout.resolve(tensor.layout().mesh());
  StatusOr<std::shared_ptr<TensorRep>> result = start_relayout(tensor, to, replicas);
  if (!result.ok()) {
    return internal::TensorAccess::failed(tensor.dtype(), tensor.shape(), to, result.status());
  }
  return internal::TensorAccess::make(*std::move(result));
}

}  // namespace tessera
