// SPDX-License-Identifier: Apache-2.0
#include "ops/apply.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "compute/cpu/host_engine.h"
#include "dtensor/bounded_cache.h"
#include "dtensor/device_op.h"
#include "dtensor/relayout.h"
#include "layout/layout.h"
#include "mesh/mesh_runtime.h"
#include "ops/decision.h"
#include "ops/infer.h"
#include "ops/tape_graph.h"
#include "relayout/plan.h"

namespace tessera::ops {
namespace {

using internal::DeviceProgram;
using internal::DeviceRow;

// The decision about a call, shared by equal calls.
struct Decision {
  // By operand; nothing where the operand is used as it is.
  std::vector<std::optional<Layout>> moves;
  std::shared_ptr<const DeviceProgram> program;
  // The layout that the result is moved to at the end, if any.
  std::optional<Layout> out;
};

struct OperandKey {
  Layout layout;
  Shape shape;
  DType dtype;
};
// Everything that a decision of one client depends on.
struct CallKey {
  const Operation* operation;
  Attributes attributes;
  std::vector<OperandKey> operands;
  std::optional<Layout> out;
};

const Layout& layout_of(const OperandKey& key) { return key.layout; }
const Layout& layout_of(const DTensor& tensor) { return tensor.layout(); }
const Shape& shape_of(const OperandKey& key) { return key.shape; }
const Shape& shape_of(const DTensor& tensor) { return tensor.shape(); }
DType dtype_of(const OperandKey& key) { return key.dtype; }
DType dtype_of(const DTensor& tensor) { return tensor.dtype(); }

const Operation* operation_of(const CallKey& key) { return key.operation; }
const Operation* operation_of(const OpCall& call) { return &call.operation; }
const Layout* out_of(const CallKey& key) { return key.out.has_value() ? &*key.out : nullptr; }
const Layout* out_of(const OpCall& call) {
  return call.out.layout.has_value() ? &*call.out.layout->layout() : nullptr;
}

// Takes a key, or a call that has the key: the cache finds it without a copy.
struct CallHash {
  template <class Call>
  size_t operator()(const Call& call) const {
    size_t result = absl::HashOf(operation_of(call), call.attributes);
    for (const auto& operand : call.operands) {
      result = absl::HashOf(result, layout_of(operand), shape_of(operand), dtype_of(operand));
    }
    const Layout* const out = out_of(call);
    return out == nullptr ? result : absl::HashOf(result, *out);
  }
};
struct SameCall {
  template <class Call>
  bool operator()(const CallKey& key, const Call& call) const {
    const Layout* const out = out_of(call);
    if (key.operation != operation_of(call) || key.operands.size() != call.operands.size() ||
        !(key.attributes == call.attributes) || key.out.has_value() != (out != nullptr) ||
        (out != nullptr && *key.out != *out)) {
      return false;
    }
    for (size_t i = 0; i < key.operands.size(); ++i) {
      const OperandKey& own = key.operands[i];
      const auto& operand = call.operands[i];
      if (own.dtype != dtype_of(operand) || own.shape != shape_of(operand) ||
          own.layout != layout_of(operand)) {
        return false;
      }
    }
    return true;
  }
};

constexpr int64_t kMostDecisions = 10'000;
using DecisionCache = BoundedCache<CallKey, Decision, CallHash, SameCall>;
DecisionCache& decision_cache_of(const DTensor& tensor) {
  return *static_cast<DecisionCache*>(internal::op_state_of(
      tensor, [] { return std::make_shared<DecisionCache>(kMostDecisions); }));
}

// The cache is the client's: it must not hold meshes that hold the client.
Layout without_runtime(const Layout& layout) {
  return *layout.with_mesh(internal::with_runtime(layout.mesh(), nullptr));
}

CallKey key_of(const OpCall& call) {
  CallKey key = {&call.operation, call.attributes, {}, std::nullopt};
  for (const DTensor& operand : call.operands) {
    key.operands.push_back({without_runtime(operand.layout()), operand.shape(), operand.dtype()});
  }
  if (call.out.layout.has_value()) key.out = without_runtime(*call.out.layout->layout());
  return key;
}

// Requires operands without errors.
Status check_meshes(const OpCall& call) {
  const Mesh& mesh = call.operands[0].layout().mesh();
  const internal::TensorFacts first = internal::facts_of(call.operands[0]);
  for (size_t i = 1; i < call.operands.size(); ++i) {
    const Mesh& other = call.operands[i].layout().mesh();
    if (other == mesh &&
        internal::facts_of(call.operands[i]).runtime_number == first.runtime_number) {
      continue;
    }
    return refusal(call.operation.name, "operand 0 is on ", mesh.to_string(), ", operand ", i,
                   " on ", other.to_string(), other == mesh ? " of another client" : "",
                   "; relayout() one of them to the other's mesh");
  }
  if (const Layout* const out = out_of(call); out != nullptr && out->mesh() != mesh) {
    return refusal(call.operation.name, "the operands are on ", mesh.to_string(), ", and out ",
                   out->to_string(), " on ", out->mesh().to_string());
  }
  if (call.operation.needs_host && !first.uses_host_memory) {
    return absl::UnimplementedError(
        absl::StrCat(call.operation.name,
                     ": its function is called by threads of the host, which do not reach memory "
                     "of a GPU; use local_map() with a kernel, or devices of kCpu"));
  }
  return absl::OkStatus();
}

// The first error of the operands.
Status error_of(absl::Span<const DTensor> operands) {
  for (const DTensor& operand : operands) {
    TESSERA_RETURN_IF_ERROR(internal::facts_of(operand).error);
  }
  return absl::OkStatus();
}

// Errors found before the plan is asked for, beside those of operands: of `out`, and of meshes that
// differ.
Status check_call(const OpCall& call) {
  if (call.out.layout.has_value()) {
    TESSERA_RETURN_IF_ERROR(call.out.layout->layout().status());
  }
  return check_meshes(call);
}

// See LocalCall::is_first_term.
bool is_first_term(const Layout& layout, int64_t position) {
  if (!layout.is_partial() || *layout.partial_op() == ReduceOp::kAvg) return true;
  return layout.partial_index(position) == 0;
}

StatusOr<Decision> decide(const OpCall& call, OpPlan plan) {
  std::vector<Layout> layouts;
  layouts.reserve(call.operands.size());
  std::vector<Operand> operands;
  for (const DTensor& operand : call.operands) {
    layouts.push_back(without_runtime(operand.layout()));
    operands.push_back({layouts.back(), operand.shape(), operand.dtype()});
  }
  std::optional<Layout> out;
  if (out_of(call) != nullptr) out = without_runtime(*out_of(call));
  const PlanOptions options = internal::plan_options_of(call.operands[0]);
  TESSERA_ASSIGN_OR_RETURN(LayoutDecision decided,
                           decide_layouts(call.operation.name, plan, operands, out, options,
                                          call.attributes.to_string()));
  const Assignment& assignment = decided.assignment;
  Decision decision;
  std::vector<internal::DeviceInput> inputs;
  for (size_t i = 0; i < operands.size(); ++i) {
    const bool stays = assignment.operands[i] == operands[i].layout;
    decision.moves.push_back(stays ? std::nullopt : std::make_optional(assignment.operands[i]));
    inputs.push_back({assignment.operands[i], assignment.fetches[i]});
  }
  Engine& host_engine = kernels::host_engine(internal::facts_of(call.operands[0]).arithmetic);
  decision.program = internal::make_device_program(
      call.operands, inputs, plan.dtype, plan.shape, assignment.result,
      [layout = assignment.result, kernel = std::move(plan.kernel), &host_engine](
          Engine* engine, const DeviceRow& row, absl::Span<const std::byte* const> in,
          std::byte* to) {
        return kernel({engine != nullptr ? *engine : host_engine, row.in, in, row.out, to,
                       is_first_term(layout, row.position)});
      },
      std::move(decided.explanation), call.operation.calls_user);
  if (out.has_value() && *out != assignment.result) decision.out = out;
  return decision;
}

DTensor refused(const OpCall& call, Status error) {
  const DTensor& first = call.operands[0];
  return internal::failed_tensor(first.dtype(), first.shape(), first.layout(), std::move(error));
}

// The decision about the call, made once for equal calls.
StatusOr<std::shared_ptr<const Decision>> find_or_decide(const OpCall& call) {
  DecisionCache& decisions = decision_cache_of(call.operands[0]);
  const bool is_cached = call.attributes.are_comparable();
  if (is_cached) {
    if (std::shared_ptr<const Decision> known = decisions.find(call)) return known;
  }
  TESSERA_ASSIGN_OR_RETURN(OpPlan plan,
                           call.operation.plan(types_of(call.operands), call.attributes));
  TESSERA_ASSIGN_OR_RETURN(Decision made, decide(call, std::move(plan)));
  auto decision = std::make_shared<const Decision>(std::move(made));
  if (!is_cached) return decision;
  return decisions.insert(key_of(call), std::move(decision), 1);
}

// Moves the operands, and has every device compute.
DTensor run_decided(const OpCall& call, const Decision& decision) {
  const Mesh& mesh = call.operands[0].layout().mesh();
  absl::InlinedVector<DTensor, 3> inputs;
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const std::optional<Layout>& move = decision.moves[i];
    // Tapes record the operation, and not how its operands are moved.
    inputs.push_back(move.has_value() ? relayout(internal::with_trace(call.operands[i], nullptr),
                                                 move->with_mesh(mesh))
                                      : call.operands[i]);
  }
  DTensor result = internal::run_on_devices(call.operation.name, decision.program, inputs);
  if (!decision.out.has_value()) return result;
  return internal::explained_as(relayout(std::move(result), *call.out.layout), *decision.program);
}

}  // namespace

Results refuse(const OpCall& call, Status error) { return {refused(call, std::move(error))}; }

Results apply(const Operation& operation, absl::Span<const DTensor> operands,
              Attributes::Values values, const Out& out) {
  const Attributes attributes(operation.attributes, std::move(values));
  Status status = error_of(operands);
  if (!status.ok()) return refuse({operation, operands, attributes, out}, std::move(status));
  // From here on `out` is a layout, and no text.
  const Out read =
      out.layout.has_value() ? Out(out.layout->resolve(operands[0].layout().mesh())) : Out();
  const OpCall call = {operation, operands, attributes, read};
  status = check_call(call);
  if (!status.ok()) return refuse(call, std::move(status));
  if (operation.parts != nullptr) {
    Results results = operation.parts(call);
    if (!results.empty()) return results;
  }
  TESSERA_CHECK(operation.plan != nullptr, "an operation without a plan is made of parts");
  const StatusOr<std::shared_ptr<const Decision>> decision = find_or_decide(call);
  if (!decision.ok()) return refuse(call, decision.status());
  Results results;  // not braced: a braced element is copied
  results.push_back(record(operation, operands, attributes, run_decided(call, **decision)));
  return results;
}

}  // namespace tessera::ops
