// SPDX-License-Identifier: Apache-2.0
//
// The backward pass.
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
#include "ops/all_operations.h"
#include "ops/composite.h"
#include "ops/operation.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/scalar.h"
#include "ops/tape_graph.h"

namespace tessera {
namespace {

using internal::TapeRecord;
using ops::add;
using ops::Application;
using ops::ElementBytes;
using ops::Gradients;
using ops::node_of;
using ops::rounded_element;
using ops::TapeNode;
using ops::TapeNodes;
using ops::Trace;
using ops::trace_of;
using ops::with_nodes;

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
  Pending(std::shared_ptr<TapeNode> node, const DTensor& cotangent)
      : node_(std::move(node)), dtype_(cotangent.dtype()), sum_(cotangent) {}

  const std::shared_ptr<TapeNode>& node() const { return node_; }

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

  std::shared_ptr<TapeNode> node_;
  DType dtype_;
  DTensor sum_;  // f32 where three or more of a half type were added
  std::optional<DTensor> second_;
};
// By number: the node that was computed last comes first.
using PendingNodes = std::map<uint64_t, Pending, std::greater<>>;

void add_cotangent(const std::shared_ptr<TapeNode>& node, const DTensor& cotangent,
                   PendingNodes& pending) {
  const auto [place, is_new] = pending.try_emplace(node->number, node, cotangent);
  if (!is_new) place->second.add_cotangent(cotangent);
}

// How many of the nodes that lead to these lead to each node.
std::map<const TapeNode*, int> count_uses(const PendingNodes& pending) {
  std::map<const TapeNode*, int> uses;
  std::vector<const TapeNode*> left;
  for (const auto& [number, each] : pending) left.push_back(each.node().get());
  while (!left.empty()) {
    const TapeNode* const node = left.back();
    left.pop_back();
    for (const std::shared_ptr<TapeNode>& input : node->application.inputs) {
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
using OnKnown = std::function<void(const TapeNode* node, const DTensor& cotangent)>;
StatusOr<std::map<const TapeNode*, DTensor>> run_backward(
    PendingNodes pending, const std::vector<const TapeNode*>& wanted, bool keeps,
    const OnKnown& on_known) {
  std::map<const TapeNode*, DTensor> found;
  std::map<const TapeNode*, int> uses;
  if (on_known) uses = count_uses(pending);
  const auto note_used = [&](const TapeNode* input) {
    if (!on_known || --uses[input] > 0) return;
    if (std::find(wanted.begin(), wanted.end(), input) == wanted.end()) return;
    const auto place = pending.find(input->number);
    if (place != pending.end()) on_known(input, place->second.settled());
  };
  while (!pending.empty()) {
    const std::shared_ptr<TapeNode> next = pending.begin()->second.node();
    const DTensor cotangent = pending.begin()->second.settled();
    pending.erase(pending.begin());
    TapeNode& node = *next;
    if (std::find(wanted.begin(), wanted.end(), &node) != wanted.end()) {
      found.emplace(&node, cotangent);
    }
    TESSERA_RETURN_IF_ERROR(node.error);
    const Application& application = node.application;
    if (application.operation == nullptr) continue;
    std::vector<bool> needed;
    for (const std::shared_ptr<TapeNode>& input : application.inputs) {
      needed.push_back(input != nullptr);
    }
    // With its own node: a tape that is kept records what is computed from the result here.
    TapeNodes nodes = application.older;
    nodes.push_back(next);
    const DTensor result = with_nodes(*application.result, std::move(nodes));
    const Gradients gradients = application.operation->gradient(
        {application.operands, result, cotangent, needed, application.attributes});
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (application.inputs[i] == nullptr || !gradients[i].has_value()) continue;
      add_cotangent(application.inputs[i], *gradients[i], pending);
    }
    for (const std::shared_ptr<TapeNode>& input : application.inputs) {
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

// Why a tape does not know a tensor, and what to do.
std::string why_unknown(const DTensor& tensor) {
  const Trace* const trace = trace_of(tensor);
  if (trace == nullptr) return "this tape does not watch it";
  const TapeNodes& nodes = trace->nodes();
  const bool has_ended =
      std::all_of(nodes.begin(), nodes.end(), [](const std::shared_ptr<TapeNode>& each) {
        return each->tape->has_ended.load(std::memory_order_acquire);
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

Tape::Tape() : record_(std::make_shared<TapeRecord>()) {}

Tape::~Tape() {
  record_->has_ended.store(true, std::memory_order_release);
  // Freed when the lock is released: a tensor that is freed may free nodes of this tape.
  std::vector<Application> dropped;
  std::lock_guard<std::mutex> lock(record_->mutex);
  for (TapeNode* node = record_->first; node != nullptr; node = node->next) {
    dropped.push_back(std::exchange(node->application, {}));
  }
}

DTensor Tape::watch(const DTensor& x) {
  if (!internal::facts_of(x).error.ok()) return x;
  if (!is_floating_point(x.dtype())) {
    return failed_like(x, absl::InvalidArgumentError(
                              absl::StrCat("watch: a tensor of ", dtype_name(x.dtype()),
                                           " has no gradient; watch floating-point numbers")));
  }
  TapeNodes nodes;
  if (const Trace* const known = trace_of(x); known != nullptr) {
    for (const std::shared_ptr<TapeNode>& each : known->nodes()) {
      if (each->tape != record_ && !each->tape->has_ended) nodes.push_back(each);
    }
  }
  nodes.push_back(std::make_shared<TapeNode>(record_));
  std::sort(nodes.begin(), nodes.end(),
            [](const auto& a, const auto& b) { return a->tape->number < b->tape->number; });
  return with_nodes(x, std::move(nodes));
}

std::vector<DTensor> Tape::gradient(const DTensor& target, absl::Span<const DTensor> sources,
                                    const GradientOptions& options) {
  const Rest rest(*record_, !options.keep);
  const uint64_t number = record_->number;
  Status status = check_target(target, options);
  for (const DTensor& source : sources) status.Update(internal::facts_of(source).error);
  if (status.ok()) status = check_known(target, sources, number);
  std::vector<std::optional<DTensor>> known(sources.size());
  std::vector<const TapeNode*> wanted;
  const auto finish = [&](size_t source, const DTensor& gradient) {
    known[source] = gradient;
    if (options.on_finished) options.on_finished(source, gradient);
  };
  const auto finish_all_of = [&](const TapeNode* node, const DTensor& cotangent) {
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i] != node || known[i].has_value()) continue;
      finish(i, finished(cotangent, sources[i], options.reduce));
    }
  };
  if (status.ok()) {
    PendingNodes pending;
    for (const DTensor& source : sources) wanted.push_back(node_of(source, number).get());
    const std::shared_ptr<TapeNode> node = node_of(target, number);
    if (node != nullptr) {
      add_cotangent(node, options.seed.has_value() ? *options.seed : full_like(target, 1), pending);
    }
    const StatusOr<std::map<const TapeNode*, DTensor>> found =
        run_backward(std::move(pending), wanted, options.keep,
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

namespace ops {
namespace {

constexpr AttributeSpec kBackwardAttribute[] = {{"backward", AttributeKind::kFunction, ""}};

Gradients backward_gradient(const GradientCall& call) {
  return call.attributes.function<Backward>("backward")(call.operands, call.result, call.cotangent);
}

}  // namespace

constinit const Operation kCustomGradient = {.name = "custom_gradient",
                                             .arity = {0, Arity::kMany},
                                             .attributes = kBackwardAttribute,
                                             .gradient = backward_gradient};

}  // namespace ops

DTensor custom_gradient(absl::Span<const DTensor> inputs, const Forward& forward,
                        const Backward& backward) {
  std::vector<DTensor> stopped;
  for (const DTensor& input : inputs) stopped.push_back(stop_gradient(input));
  const ops::Attributes attributes(
      ops::kBackwardAttribute,
      {ops::FunctionAttribute{std::make_shared<const Backward>(backward), {}}});
  return ops::record(ops::kCustomGradient, inputs, attributes, forward(stopped));
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
        const uint64_t number = trace_of(watched[0])->nodes().back()->tape->number;
        if (node_of(target, number) == nullptr) return gradients;
        std::vector<DTensor> found = tape.gradient(target, watched, options);
        for (size_t i = 0, next = 0; i < kept.size(); ++i) {
          if (is_floating_point(kept[i].dtype())) gradients[i] = std::move(found[next++]);
        }
        return gradients;
      });
}

}  // namespace tessera
