// SPDX-License-Identifier: Apache-2.0
#include "ops/tape_graph.h"

#include <algorithm>
#include <utility>

#include "absl/strings/string_view.h"
#include "dtensor/relayout.h"
#include "ops/all_operations.h"
#include "ops/tape.h"

namespace tessera::ops {
namespace {

uint64_t next_number() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

// The tapes that record results of the operands, the oldest first.
std::vector<std::shared_ptr<TapeRecord>> tapes_of(absl::Span<const DTensor> operands) {
  std::vector<std::shared_ptr<TapeRecord>> tapes;
  for (const DTensor& operand : operands) {
    const Trace* const trace = trace_of(operand);
    if (trace == nullptr) continue;
    for (const std::shared_ptr<TapeNode>& node : trace->nodes()) {
      if (!node->tape->is_resting()) tapes.push_back(node->tape);
    }
  }
  std::sort(tapes.begin(), tapes.end(),
            [](const auto& a, const auto& b) { return a->number < b->number; });
  tapes.erase(std::unique(tapes.begin(), tapes.end()), tapes.end());
  return tapes;
}

Gradients relayout_gradient(const GradientCall& call) {
  return {relayout(call.cotangent, call.operands[0].layout().without_partial())};
}

}  // namespace

constinit const Operation kRelayout = {
    .name = "relayout", .arity = {1, 1}, .gradient = relayout_gradient};

DTensor Trace::moved(DTensor result, const DTensor& source) const {
  return record(kRelayout, {&source, 1}, {}, std::move(result));
}

TapeNode::TapeNode(std::shared_ptr<TapeRecord> of) : number(next_number()), tape(std::move(of)) {
  std::lock_guard<std::mutex> lock(tape->mutex);
  next = tape->first;
  if (next != nullptr) next->before = this;
  tape->first = this;
}

TapeNode::~TapeNode() {
  {
    std::lock_guard<std::mutex> lock(tape->mutex);
    (before == nullptr ? tape->first : before->next) = next;
    if (next != nullptr) next->before = before;
  }
  std::vector<Application> dropped;
  dropped.push_back(std::move(application));
  while (!dropped.empty()) {
    Application each = std::move(dropped.back());
    dropped.pop_back();
    each.operands.clear();  // they hold the same nodes
    for (const std::shared_ptr<TapeNode>& input : each.inputs) {
      if (input != nullptr && input.use_count() == 1) dropped.push_back(input->take());
    }
  }
}

Application TapeNode::take() {
  std::lock_guard<std::mutex> lock(tape->mutex);
  return std::exchange(application, {});
}

const Trace* trace_of(const DTensor& tensor) {
  return static_cast<const Trace*>(internal::trace_of(tensor).get());
}

std::shared_ptr<TapeNode> node_of(const DTensor& tensor, uint64_t tape) {
  const Trace* const trace = trace_of(tensor);
  if (trace == nullptr) return nullptr;
  for (const std::shared_ptr<TapeNode>& node : trace->nodes()) {
    if (node->tape->number == tape) return node;
  }
  return nullptr;
}

DTensor with_nodes(const DTensor& tensor, TapeNodes nodes) {
  if (nodes.empty()) return internal::with_trace(tensor, nullptr);
  return internal::with_trace(tensor, std::make_shared<const Trace>(std::move(nodes)));
}

DTensor record(const Operation& operation, absl::Span<const DTensor> operands,
               const Attributes& attributes, DTensor result) {
  if (!operation.gradient.records(result.dtype()) ||
      std::all_of(operands.begin(), operands.end(),
                  [](const DTensor& each) { return internal::trace_of(each) == nullptr; }) ||
      !internal::facts_of(result).error.ok()) {
    return result;
  }
  TapeNodes nodes;
  for (const std::shared_ptr<TapeRecord>& tape : tapes_of(operands)) {
    auto node = std::make_shared<TapeNode>(tape);
    Application& application = node->application;
    application.operation = &operation;
    application.attributes = attributes;
    application.operands.assign(operands.begin(), operands.end());
    for (const DTensor& operand : operands) {
      application.inputs.push_back(node_of(operand, tape->number));
    }
    application.result = result;
    application.older = nodes;
    nodes.push_back(std::move(node));
  }
  return nodes.empty() ? result : with_nodes(result, std::move(nodes));
}

}  // namespace tessera::ops

namespace tessera::internal {

TapeRecord::TapeRecord() : number(ops::next_number()) {}

DTensor without_gradient(DTensor result, absl::Span<const DTensor> operands,
                         absl::string_view error) {
  if (!facts_of(result).error.ok()) return result;
  ops::TapeNodes nodes;
  for (const std::shared_ptr<TapeRecord>& tape : ops::tapes_of(operands)) {
    auto node = std::make_shared<ops::TapeNode>(tape);
    node->error = absl::InvalidArgumentError(error);
    nodes.push_back(std::move(node));
  }
  return nodes.empty() ? result : ops::with_nodes(result, std::move(nodes));
}

}  // namespace tessera::internal
