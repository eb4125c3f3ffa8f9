// SPDX-License-Identifier: Apache-2.0
#include "ops/op.h"

#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "compute/cpu/host_engine.h"
#include "dtensor/bounded_cache.h"
#include "dtensor/device_op.h"
#include "dtensor/relayout.h"
#include "layout/layout.h"
#include "mesh/mesh_runtime.h"
#include "ops/decision.h"
#include "ops/infer.h"
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
  const void* operation;
  const char* name;
  std::vector<int64_t> attributes;
  std::vector<OperandKey> operands;
  std::optional<Layout> out;
};

// A call of an operation.
struct Asked {
  const OpCall& call;
  const void* operation;
};

// A key, or a call that has the key: found without a copy.
struct CallHash {
  template <class Operands>
  static size_t hash(const void* operation, const char* name, absl::Span<const int64_t> attributes,
                     const Operands& operands, const Layout* out) {
    size_t result = absl::HashOf(operation, absl::string_view(name), attributes);
    for (const auto& operand : operands) {
      result = absl::HashOf(result, layout_of(operand), shape_of(operand), dtype_of(operand));
    }
    return out == nullptr ? result : absl::HashOf(result, *out);
  }
  static const Layout& layout_of(const OperandKey& key) { return key.layout; }
  static const Layout& layout_of(const DTensor& tensor) { return tensor.layout(); }
  static const Shape& shape_of(const OperandKey& key) { return key.shape; }
  static const Shape& shape_of(const DTensor& tensor) { return tensor.shape(); }
  static DType dtype_of(const OperandKey& key) { return key.dtype; }
  static DType dtype_of(const DTensor& tensor) { return tensor.dtype(); }

  size_t operator()(const CallKey& key) const {
    return hash(key.operation, key.name, key.attributes, key.operands,
                key.out.has_value() ? &*key.out : nullptr);
  }
  size_t operator()(const Asked& asked) const {
    const OpCall& call = asked.call;
    return hash(asked.operation, call.name, call.attributes, call.operands,
                call.out.layout.has_value() ? &**call.out.layout : nullptr);
  }
};
struct SameCall {
  template <class Operands>
  static bool same(const CallKey& key, const char* name, absl::Span<const int64_t> attributes,
                   const Operands& operands, const Layout* out) {
    if (absl::string_view(key.name) != name || absl::MakeConstSpan(key.attributes) != attributes ||
        key.operands.size() != operands.size() || key.out.has_value() != (out != nullptr) ||
        (out != nullptr && *key.out != *out)) {
      return false;
    }
    for (size_t i = 0; i < operands.size(); ++i) {
      const OperandKey& own = key.operands[i];
      if (own.dtype != CallHash::dtype_of(operands[i]) ||
          own.shape != CallHash::shape_of(operands[i]) ||
          own.layout != CallHash::layout_of(operands[i])) {
        return false;
      }
    }
    return true;
  }
  bool operator()(const CallKey& key, const Asked& asked) const {
    const OpCall& call = asked.call;
    return key.operation == asked.operation &&
           same(key, call.name, call.attributes, call.operands,
                call.out.layout.has_value() ? &**call.out.layout : nullptr);
  }
  bool operator()(const CallKey& key, const CallKey& other) const {
    return key.operation == other.operation &&
           same(key, other.name, other.attributes, other.operands,
                other.out.has_value() ? &*other.out : nullptr);
  }
};

constexpr int64_t kMostDecisions = 10'000;
using DecisionCache = BoundedCache<CallKey, Decision, CallHash, SameCall>;
DecisionCache& decisions_of(const DTensor& tensor) {
  return *static_cast<DecisionCache*>(internal::op_state_of(
      tensor, [] { return std::make_shared<DecisionCache>(kMostDecisions); }));
}

// The cache is the client's: it must not hold meshes that hold the client.
Layout without_runtime(const Layout& layout) {
  return *layout.with_mesh(internal::with_runtime(layout.mesh(), nullptr));
}

CallKey key_of(const Asked& asked) {
  const OpCall& call = asked.call;
  CallKey key = {asked.operation,
                 call.name,
                 {call.attributes.begin(), call.attributes.end()},
                 {},
                 std::nullopt};
  for (const DTensor& operand : call.operands) {
    key.operands.push_back({without_runtime(operand.layout()), operand.shape(), operand.dtype()});
  }
  if (call.out.layout.has_value()) key.out = without_runtime(**call.out.layout);
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
    return refusal(call.name, "operand 0 is on ", mesh.to_string(), ", operand ", i, " on ",
                   other.to_string(), other == mesh ? " of another client" : "",
                   "; relayout() one of them to the other's mesh");
  }
  if (call.out.layout.has_value() && (*call.out.layout)->mesh() != mesh) {
    return refusal(call.name, "the operands are on ", mesh.to_string(), ", and out ",
                   (*call.out.layout)->to_string(), " on ", (*call.out.layout)->mesh().to_string());
  }
  if (call.needs_host && !first.uses_host_memory) {
    return absl::UnimplementedError(
        absl::StrCat(call.name,
                     ": its function is called by threads of the host, which do not reach memory "
                     "of a GPU; use local_map() with a kernel, or devices of kCpu"));
  }
  return absl::OkStatus();
}

// Errors found before the plan is asked for: of operands, of `out`, and of meshes that differ.
Status check_call(const OpCall& call) {
  for (const DTensor& operand : call.operands) {
    TESSERA_RETURN_IF_ERROR(internal::facts_of(operand).error);
  }
  if (call.out.layout.has_value()) {
    TESSERA_RETURN_IF_ERROR(call.out.layout->status());
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
  if (call.out.layout.has_value()) out = without_runtime(**call.out.layout);
  const PlanOptions options = internal::plan_options_of(call.operands[0]);
  TESSERA_ASSIGN_OR_RETURN(LayoutDecision decided, decide_layouts(call.name, plan, operands, out,
                                                                  options, call.attributes));
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
      std::move(decided.explanation));
  if (out.has_value() && *out != assignment.result) decision.out = out;
  return decision;
}

}  // namespace

DTensor refuse(const OpCall& call, Status error) {
  const DTensor& first = call.operands[0];
  return internal::failed_tensor(first.dtype(), first.shape(), first.layout(), std::move(error));
}

DTensor run_operation(const OpCall& call, const void* operation,
                      absl::FunctionRef<StatusOr<OpPlan>()> plan) {
  Status status = check_call(call);
  if (!status.ok()) return refuse(call, std::move(status));
  DecisionCache& decisions = decisions_of(call.operands[0]);
  const Asked asked = {call, operation};
  std::shared_ptr<const Decision> decision = call.is_cached ? decisions.find(asked) : nullptr;
  if (decision == nullptr) {
    StatusOr<OpPlan> planned = plan();
    if (!planned.ok()) return refuse(call, planned.status());
    StatusOr<Decision> made = decide(call, *std::move(planned));
    if (!made.ok()) return refuse(call, made.status());
    decision = std::make_shared<const Decision>(*std::move(made));
    if (call.is_cached) decision = decisions.insert(key_of(asked), decision, 1);
  }
  const Mesh& mesh = call.operands[0].layout().mesh();
  absl::InlinedVector<DTensor, 3> inputs;
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const std::optional<Layout>& move = decision->moves[i];
    inputs.push_back(move.has_value() ? relayout(call.operands[i], move->with_mesh(mesh))
                                      : call.operands[i]);
  }
  DTensor result = internal::run_on_devices(call.name, decision->program, inputs);
  if (!decision->out.has_value()) return result;
  return internal::explained_as(relayout(std::move(result), *call.out.layout), *decision->program);
}

int64_t attribute_of(double value) {
  int64_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

StatusOr<int> checked_dim(const char* name, int64_t dim, int64_t rank) {
  if (dim >= -rank && dim < rank) return static_cast<int>(dim < 0 ? dim + rank : dim);
  return refusal(name, "dim ", dim, " is out of range for a tensor of rank ", rank);
}

}  // namespace tessera::ops
