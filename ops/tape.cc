// SPDX-License-Identifier: Apache-2.0
//
// Each recorded tensor has one node for each tape that knows it. Nodes point at the nodes of the
// operands, so a node that no tensor leads to is forgotten.
//
// A node holds its result without a trace, and, for the gradient of a gradient, the result's nodes
// of older tapes. Nothing points from an older tape's node to a younger one's, or from an operand's
// to a result's, so there are no cycles.
//
// A tape lists its nodes, and empties them when it ends: tensors that outlive it, as a sum of the
// losses of all steps does, hold empty nodes then, and no step.
#include "ops/tape.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/device_op.h"
#include "dtensor/relayout.h"
#include "layout/layout.h"
#include "ops/composite.h"
#include "ops/gradient.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/scalar.h"
#include "ops/shapes.h"

namespace tessera {
namespace {

using ops::add;
using ops::differentiable;
using ops::ElementBytes;
using ops::GradientCall;
using ops::GradientFn;
using ops::Gradients;
using ops::rounded_element;

struct Node;
// The nodes of one tensor, by the numbers of their tapes.
struct TapeNode {
  uint64_t tape;
  std::shared_ptr<Node> node;
};
using Trace = absl::InlinedVector<TapeNode, 2>;

uint64_t next_number() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

// The state that a tape shares with its nodes.
class internal::TapeRecord {
 public:
  const uint64_t number = next_number();

  // Whether nothing is recorded: the tape has ended, or gradient() runs and was not asked to
  // record.
  bool is_resting() const {
    return has_ended.load(std::memory_order_acquire) ||
           num_resting.load(std::memory_order_relaxed) > 0;
  }

  std::atomic<bool> has_ended{false};
  std::atomic<int> num_resting{0};
  // Guards the list, and the contents of its nodes against the end of the tape.
  std::mutex mutex;
  Node* first = nullptr;
};

namespace {

using internal::TapeRecord;

// The record of one tensor.
struct Recorded {
  std::vector<std::shared_ptr<Node>> inputs;  // by operand; null where the tape does not know it
  GradientFn gradient;                        // none of a watched tensor
  std::vector<DTensor> operands;
  std::optional<DTensor> result;  // without a trace
  Trace older;                    // of the result
};

struct Node {
  explicit Node(std::shared_ptr<TapeRecord> of) : tape(std::move(of)) {
    std::lock_guard<std::mutex> lock(tape->mutex);
    next = tape->first;
    if (next != nullptr) next->before = this;
    tape->first = this;
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // Frees what it holds, node by node: a chain of them may be longer than the stack.
  ~Node() {
    {
      std::lock_guard<std::mutex> lock(tape->mutex);
      (before == nullptr ? tape->first : before->next) = next;
      if (next != nullptr) next->before = before;
    }
    std::vector<Recorded> dropped;
    dropped.push_back(std::move(recorded));
    while (!dropped.empty()) {
      Recorded each = std::move(dropped.back());
      dropped.pop_back();
      each.operands.clear();  // they hold the same nodes
      for (const std::shared_ptr<Node>& input : each.inputs) {
        if (input != nullptr && input.use_count() == 1) dropped.push_back(input->take());
      }
    }
  }

  Recorded take() {
    std::lock_guard<std::mutex> lock(tape->mutex);
    return std::exchange(recorded, {});
  }

  const uint64_t number = next_number();  // of a result higher than of its operands
  const std::shared_ptr<TapeRecord> tape;
  Recorded recorded;
  Status error = {};  // of a gradient that reaches it

  // The list of the tape's nodes.
  Node* before = nullptr;
  Node* next = nullptr;
};

// Lets a tape rest for as long as this object lives.
class Rest {
 public:
  Rest(TapeRecord& tape, bool rests) : tape_(tape), rests_(rests) {
    if (rests_) tape_.num_resting.fetch_add(1, std::memory_order_relaxed);
  }
  ~Rest() {
    if (rests_) tape_.num_resting.fetch_sub(1, std::memory_order_relaxed);
  }
  Rest(const Rest&) = delete;
  Rest& operator=(const Rest&) = delete;

 private:
  TapeRecord& tape_;
  const bool rests_;
};

const Trace* trace_of(const DTensor& tensor) {
  return static_cast<const Trace*>(internal::trace_of(tensor).get());
}

std::shared_ptr<Node> node_of(const DTensor& tensor, uint64_t tape) {
  const Trace* const trace = trace_of(tensor);
  if (trace == nullptr) return nullptr;
  for (const TapeNode& each : *trace) {
    if (each.tape == tape) return each.node;
  }
  return nullptr;
}

DTensor with_trace(const DTensor& tensor, Trace trace) {
  if (trace.empty()) return internal::with_trace(tensor, nullptr);
  return internal::with_trace(tensor, std::make_shared<const Trace>(std::move(trace)));
}

DTensor record_relayout(DTensor result, const DTensor& source) {
  const Layout layout = source.layout().without_partial();
  return ops::record(std::move(result), {&source, 1},
                     [layout](const GradientCall& call) -> Gradients {
                       return {relayout(call.cotangent, layout)};
                     });
}

DTensor full_like(const DTensor& tensor, double value) {
  const ElementBytes element = rounded_element(value, tensor.dtype());
  return internal::full_raw(tensor.dtype(), tensor.shape(), tensor.layout().without_partial(),
                            element.data());
}

DTensor failed_like(const DTensor& tensor, Status error) {
  return internal::failed_tensor(tensor.dtype(), tensor.shape(), tensor.layout(), std::move(error));
}

Status check_target(const DTensor& target, const GradientOptions& options) {
  TESSERA_RETURN_IF_ERROR(internal::facts_of(target).error);
  if (!options.seed.has_value()) {
    if (target.shape().empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("gradient: the target ", shape_to_string(target.shape()),
                     " is not a scalar; give GradientOptions::seed, or sum() it"));
  }
  TESSERA_RETURN_IF_ERROR(internal::facts_of(*options.seed).error);
  if (options.seed->shape() != target.shape() || options.seed->dtype() != target.dtype()) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradient: the seed is ", dtype_name(options.seed->dtype()), " ",
                     shape_to_string(options.seed->shape()), ", the target ",
                     dtype_name(target.dtype()), " ", shape_to_string(target.shape())));
  }
  return absl::OkStatus();
}

// A node with the sum of its cotangents so far. More than two of f16 or bf16 are added in f32: a
// weight that each step of a loop uses has thousands.
class Pending {
 public:
  Pending(std::shared_ptr<Node> node, const DTensor& cotangent)
      : node_(std::move(node)), dtype_(cotangent.dtype()), sum_(cotangent) {}

  const std::shared_ptr<Node>& node() const { return node_; }

  void add_cotangent(const DTensor& next) {
    if (!ops::is_half(next.dtype())) {
      sum_ = add(sum_, next);
      return;
    }
    if (!second_.has_value() && !ops::is_half(sum_.dtype())) {
      sum_ = add(sum_, widened(next));
    } else if (!second_.has_value()) {
      second_ = next;
    } else {
      sum_ = add(add(widened(sum_), widened(*second_)), widened(next));
      second_.reset();
    }
  }
  // The sum of all cotangents. None is added afterwards.
  const DTensor& settled() {
    if (second_.has_value()) sum_ = add(sum_, *second_);
    second_.reset();
    if (sum_.dtype() != dtype_) sum_ = ops::cast_terms(sum_, dtype_);
    return sum_;
  }

 private:
  static DTensor widened(const DTensor& x) { return ops::cast_terms(x, DType::kFloat32); }

  std::shared_ptr<Node> node_;
  DType dtype_;
  DTensor sum_;  // f32 where three or more of a half type were added
  std::optional<DTensor> second_;
};
// By number: the node that was computed last comes first.
using PendingNodes = std::map<uint64_t, Pending, std::greater<>>;

void add_cotangent(const std::shared_ptr<Node>& node, const DTensor& cotangent,
                   PendingNodes& pending) {
  const auto [place, is_new] = pending.try_emplace(node->number, node, cotangent);
  if (!is_new) place->second.add_cotangent(cotangent);
}

// How many of the nodes that lead to these lead to each node.
std::map<const Node*, int> count_uses(const PendingNodes& pending) {
  std::map<const Node*, int> uses;
  std::vector<const Node*> left;
  for (const auto& [number, each] : pending) left.push_back(each.node().get());
  while (!left.empty()) {
    const Node* const node = left.back();
    left.pop_back();
    for (const std::shared_ptr<Node>& input : node->recorded.inputs) {
      if (input != nullptr && uses[input.get()]++ == 0) left.push_back(input.get());
    }
  }
  return uses;
}

// One for all nodes: each of a backward pass gets it.
const Status& used_up() {
  static const Status* const kError = new Status(absl::FailedPreconditionError(
      "gradient: the tape has used up what led to this target; set GradientOptions::keep in the "
      "first call"));
  return *kError;
}

// The cotangents of the nodes that `wanted` names, from the target's. `on_known` is called for each
// cotangent as soon as nothing is added to it any more.
using OnKnown = std::function<void(const Node* node, const DTensor& cotangent)>;
StatusOr<std::map<const Node*, DTensor>> run_backward(PendingNodes pending,
                                                      const std::vector<const Node*>& wanted,
                                                      uint64_t tape, bool keeps,
                                                      const OnKnown& on_known) {
  std::map<const Node*, DTensor> found;
  std::map<const Node*, int> uses;
  if (on_known) uses = count_uses(pending);
  const auto note_used = [&](const Node* input) {
    if (!on_known || --uses[input] > 0) return;
    if (std::find(wanted.begin(), wanted.end(), input) == wanted.end()) return;
    const auto place = pending.find(input->number);
    if (place != pending.end()) on_known(input, place->second.settled());
  };
  while (!pending.empty()) {
    const std::shared_ptr<Node> next = pending.begin()->second.node();
    const DTensor cotangent = pending.begin()->second.settled();
    pending.erase(pending.begin());
    Node& node = *next;
    if (std::find(wanted.begin(), wanted.end(), &node) != wanted.end()) {
      found.emplace(&node, cotangent);
    }
    TESSERA_RETURN_IF_ERROR(node.error);
    const Recorded& recorded = node.recorded;
    if (recorded.gradient == nullptr) continue;
    std::vector<bool> needed;
    for (const std::shared_ptr<Node>& input : recorded.inputs) needed.push_back(input != nullptr);
    // With its own node: a tape that is kept records what is computed from the result here.
    Trace trace = recorded.older;
    trace.push_back({tape, next});
    const DTensor result = with_trace(*recorded.result, std::move(trace));
    const Gradients gradients = recorded.gradient({recorded.operands, result, cotangent, needed});
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (recorded.inputs[i] == nullptr || !gradients[i].has_value()) continue;
      add_cotangent(recorded.inputs[i], *gradients[i], pending);
    }
    for (const std::shared_ptr<Node>& input : recorded.inputs) {
      if (input != nullptr) note_used(input.get());
    }
    if (keeps) continue;
    node.error = used_up();
    node.take();
  }
  return found;
}

// A gradient in the layout that is promised.
DTensor finished(const DTensor& cotangent, const DTensor& source, Reduce reduce) {
  const Layout layout = source.layout().without_partial();
  if (reduce == Reduce::kNow || !cotangent.layout().is_partial() ||
      cotangent.layout().partial_op() != ReduceOp::kSum) {
    return relayout(cotangent, layout);
  }
  // The partial axes stay where the layout does not split by them.
  std::vector<std::string> axes;
  for (const SubAxis& part : cotangent.layout().partial_axes()) {
    const MeshAxis& axis = layout.mesh().axes()[part.axis];
    if (part.size == axis.size) axes.push_back(axis.name);
  }
  StatusOr<Layout> partial = layout.with_partial(axes);
  while (!partial.ok() && !axes.empty()) {
    axes.pop_back();
    partial = layout.with_partial(axes);
  }
  return relayout(cotangent, partial.ok() ? *partial : layout);
}

// The tapes that record results of the operands, the oldest first.
std::vector<std::shared_ptr<TapeRecord>> tapes_of(absl::Span<const DTensor> operands) {
  std::vector<std::shared_ptr<TapeRecord>> tapes;
  for (const DTensor& operand : operands) {
    const Trace* const trace = trace_of(operand);
    if (trace == nullptr) continue;
    for (const TapeNode& each : *trace) {
      if (!each.node->tape->is_resting()) tapes.push_back(each.node->tape);
    }
  }
  std::sort(tapes.begin(), tapes.end(),
            [](const auto& a, const auto& b) { return a->number < b->number; });
  tapes.erase(std::unique(tapes.begin(), tapes.end()), tapes.end());
  return tapes;
}

// Why a tape does not know a tensor, and what to do.
std::string why_unknown(const DTensor& tensor) {
  const Trace* const trace = trace_of(tensor);
  if (trace == nullptr || trace->empty()) return "this tape does not watch it";
  const bool has_ended = std::all_of(trace->begin(), trace->end(), [](const TapeNode& each) {
    return each.node->tape->has_ended.load(std::memory_order_acquire);
  });
  return has_ended ? "it belongs to a tape that has ended" : "it belongs to another tape";
}

// A target without a trace is a constant.
Status check_known(const DTensor& target, absl::Span<const DTensor> sources, uint64_t tape) {
  for (size_t i = 0; i < sources.size(); ++i) {
    if (node_of(sources[i], tape) != nullptr) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "gradient: source ", i, ", ", dtype_name(sources[i].dtype()), " ",
        shape_to_string(sources[i].shape()), ", is not known: ", why_unknown(sources[i]),
        "; compute the target from what watch() returns, and give that as the source"));
  }
  if (trace_of(target) == nullptr || node_of(target, tape) != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("gradient: the target, ", dtype_name(target.dtype()), " ",
                   shape_to_string(target.shape()), ", is not known: ", why_unknown(target),
                   "; compute it from what watch() of this tape "
                   "returns"));
}

}  // namespace

namespace internal {

DTensor without_gradient(DTensor result, absl::Span<const DTensor> operands,
                         absl::string_view error) {
  const std::vector<std::shared_ptr<TapeRecord>> tapes = tapes_of(operands);
  if (tapes.empty() || !facts_of(result).error.ok()) return result;
  Trace trace;
  for (const std::shared_ptr<TapeRecord>& tape : tapes) {
    auto node = std::make_shared<Node>(tape);
    node->error = absl::InvalidArgumentError(error);
    trace.push_back({tape->number, std::move(node)});
  }
  return tessera::with_trace(result, std::move(trace));
}

}  // namespace internal

namespace ops {

DTensor record(DTensor result, absl::Span<const DTensor> operands, GradientFn gradient) {
  if (!internal::facts_of(result).error.ok()) return result;
  const std::vector<std::shared_ptr<TapeRecord>> tapes = tapes_of(operands);
  if (tapes.empty()) return result;
  Trace trace;
  for (const std::shared_ptr<TapeRecord>& tape : tapes) {
    auto node = std::make_shared<Node>(tape);
    Recorded& recorded = node->recorded;
    for (const DTensor& operand : operands) {
      recorded.inputs.push_back(node_of(operand, tape->number));
    }
    recorded.gradient = gradient;
    recorded.operands.assign(operands.begin(), operands.end());
    recorded.result = result;
    recorded.older = trace;
    trace.push_back({tape->number, std::move(node)});
  }
  return with_trace(result, std::move(trace));
}

DTensor sum_to(const DTensor& cotangent, const Shape& shape) {
  if (cotangent.shape() == shape) return cotangent;
  const size_t before = cotangent.shape().size() - shape.size();
  std::vector<int64_t> dims;
  for (size_t dim = 0; dim < cotangent.shape().size(); ++dim) {
    if (dim < before || (shape[dim - before] == 1 && cotangent.shape()[dim] != 1)) {
      dims.push_back(static_cast<int64_t>(dim));
    }
  }
  return reshape(sum(cotangent, dims, KeepDims::kYes), shape);
}

}  // namespace ops

Tape::Tape() : record_(std::make_shared<internal::TapeRecord>()) {
  internal::set_record_relayout(record_relayout);
}

Tape::~Tape() {
  record_->has_ended.store(true, std::memory_order_release);
  // Freed when the lock is released: a tensor that is freed may free nodes of this tape.
  std::vector<Recorded> dropped;
  std::lock_guard<std::mutex> lock(record_->mutex);
  for (Node* node = record_->first; node != nullptr; node = node->next) {
    dropped.push_back(std::exchange(node->recorded, {}));
  }
}

DTensor Tape::watch(const DTensor& x) {
  if (!internal::facts_of(x).error.ok()) return x;
  if (!is_floating_point(x.dtype())) {
    return failed_like(x, absl::InvalidArgumentError(
                              absl::StrCat("watch: a tensor of ", dtype_name(x.dtype()),
                                           " has no gradient; watch floating-point numbers")));
  }
  Trace trace;
  if (const Trace* const known = trace_of(x); known != nullptr) {
    for (const TapeNode& each : *known) {
      if (each.tape != record_->number && !each.node->tape->has_ended) trace.push_back(each);
    }
  }
  trace.push_back({record_->number, std::make_shared<Node>(record_)});
  std::sort(trace.begin(), trace.end(),
            [](const TapeNode& a, const TapeNode& b) { return a.tape < b.tape; });
  return with_trace(x, std::move(trace));
}

std::vector<DTensor> Tape::gradient(const DTensor& target, absl::Span<const DTensor> sources,
                                    const GradientOptions& options) {
  const Rest rest(*record_, !options.keep);
  const uint64_t number = record_->number;
  Status status = check_target(target, options);
  for (const DTensor& source : sources) status.Update(internal::facts_of(source).error);
  if (status.ok()) status = check_known(target, sources, number);
  std::vector<std::optional<DTensor>> known(sources.size());
  std::vector<const Node*> wanted;
  const auto finish = [&](size_t source, const DTensor& gradient) {
    known[source] = gradient;
    if (options.on_finished) options.on_finished(source, gradient);
  };
  const auto finish_all_of = [&](const Node* node, const DTensor& cotangent) {
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i] != node || known[i].has_value()) continue;
      finish(i, finished(cotangent, sources[i], options.reduce));
    }
  };
  if (status.ok()) {
    PendingNodes pending;
    for (const DTensor& source : sources) wanted.push_back(node_of(source, number).get());
    const std::shared_ptr<Node> node = node_of(target, number);
    if (node != nullptr) {
      add_cotangent(node, options.seed.has_value() ? *options.seed : full_like(target, 1), pending);
    }
    const StatusOr<std::map<const Node*, DTensor>> found =
        run_backward(std::move(pending), wanted, number, options.keep,
                     options.on_finished ? OnKnown(finish_all_of) : OnKnown());
    status = found.status();
    for (size_t i = 0; status.ok() && i < sources.size(); ++i) {
      const auto place = found->find(wanted[i]);
      if (place != found->end()) finish_all_of(place->first, place->second);
    }
  }
  std::vector<DTensor> gradients;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (status.ok() && !known[i].has_value()) finish(i, full_like(sources[i], 0));
    gradients.push_back(status.ok() ? *known[i] : failed_like(sources[i], status));
  }
  return gradients;
}

DTensor stop_gradient(const DTensor& x) { return internal::with_trace(x, nullptr); }

DTensor custom_gradient(absl::Span<const DTensor> inputs, const Forward& forward,
                        const Backward& backward) {
  std::vector<DTensor> stopped;
  for (const DTensor& input : inputs) stopped.push_back(stop_gradient(input));
  return differentiable(forward(stopped), inputs, [backward](const GradientCall& call) {
    return backward(call.operands, call.result, call.cotangent);
  });
}

DTensor rematerialize(const Forward& forward, absl::Span<const DTensor> inputs) {
  return custom_gradient(
      inputs, forward,
      [forward](absl::Span<const DTensor> kept, const DTensor&,
                const DTensor& cotangent) -> Gradients {
        Tape tape;
        std::vector<DTensor> inputs;
        std::vector<DTensor> watched;
        for (const DTensor& input : kept) {
          inputs.push_back(is_floating_point(input.dtype()) ? tape.watch(input) : input);
          if (is_floating_point(input.dtype())) watched.push_back(inputs.back());
        }
        GradientOptions options;
        options.seed = cotangent;
        options.reduce = Reduce::kLater;
        Gradients gradients(kept.size());
        if (watched.empty()) return gradients;
        const DTensor target = forward(inputs);
        // Tensors that the function has besides its inputs may be all that the target is made of.
        if (node_of(target, trace_of(watched[0])->back().tape) == nullptr) return gradients;
        std::vector<DTensor> found = tape.gradient(target, watched, options);
        for (size_t i = 0, next = 0; i < kept.size(); ++i) {
          if (is_floating_point(kept[i].dtype())) gradients[i] = std::move(found[next++]);
        }
        return gradients;
      });
}

}  // namespace tessera
