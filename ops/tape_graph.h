// SPDX-License-Identifier: Apache-2.0
//
// The graph that tapes record: a list of applications of operations.
//
// Each recorded tensor has a trace: one node for each tape that knows the tensor. A node holds the
// application that computed the tensor, and points at the nodes of the operands, so a node that no
// tensor leads to is freed.
//
// Invariants:
//   1. nothing points from the node of an older tape to one of a younger tape, or from an operand's
//      node to a result's: there are no cycles;
//   2. an application holds its result without a trace, and the result's nodes of older tapes
//      beside it;
//   3. when a tape ends it empties its nodes: tensors that outlive it, as a sum of the losses of
//      all steps does, then hold empty nodes, and no step.
//
// Several threads may record and drop tensors of one tape while it ends. The mutex of its
// TapeRecord guards the list of nodes, and their applications. gradient(), which one thread at a
// time calls, writes a node's error; the other members of a node do not change.
//
// Internal to ops/.
#ifndef TESSERA_OPS_TAPE_GRAPH_H_
#define TESSERA_OPS_TAPE_GRAPH_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "base/public.h"
#include "base/status.h"
#include "dtensor/device_op.h"
#include "dtensor/dtensor.h"
#include "ops/operation.h"

namespace tessera {
namespace ops {
struct TapeNode;
}  // namespace ops

namespace internal {

// The state that a tape shares with its nodes.
class TESSERA_INTERNAL TapeRecord {
 public:
  TapeRecord();

  // Whether nothing is recorded: the tape has ended, or gradient() runs and was not asked to
  // record.
  bool is_resting() const {
    return has_ended.load(std::memory_order_acquire) ||
           num_resting.load(std::memory_order_relaxed) > 0;
  }

  const uint64_t number;
  std::atomic<bool> has_ended{false};
  std::atomic<int> num_resting{0};
  // Guards the list, and the applications of its nodes against the end of the tape.
  std::mutex mutex;
  ops::TapeNode* first = nullptr;
};

}  // namespace internal

namespace ops {

using internal::TapeRecord;

// The nodes of one tensor, by their tapes, the oldest tape first.
using TapeNodes = absl::InlinedVector<std::shared_ptr<TapeNode>, 2>;

class Trace final : public internal::Trace {
 public:
  explicit Trace(TapeNodes nodes) : nodes_(std::move(nodes)) {}

  DTensor moved(DTensor result, const DTensor& source) const override;
  const TapeNodes& nodes() const { return nodes_; }

 private:
  const TapeNodes nodes_;
};

// An operation with its operands and its result.
struct Application {
  const Operation* operation = nullptr;  // null for a watched tensor
  Attributes attributes;
  std::vector<DTensor> operands;
  std::vector<std::shared_ptr<TapeNode>> inputs;  // by operand; null where the tape knows it not
  std::optional<DTensor> result;                  // without a trace
  TapeNodes older;                                // of the result
};

struct TapeNode {
  explicit TapeNode(std::shared_ptr<TapeRecord> of);
  TapeNode(const TapeNode&) = delete;
  TapeNode& operator=(const TapeNode&) = delete;
  // Frees what it holds, node by node: a chain of them may be longer than the stack.
  ~TapeNode();

  Application take();

  const uint64_t number;  // a result's is higher than its operands'
  const std::shared_ptr<TapeRecord> tape;
  Application application;
  Status error = {};  // of a gradient that reaches the node

  // The list of the tape's nodes.
  TapeNode* before = nullptr;
  TapeNode* next = nullptr;
};

// Null where no tape records the tensor.
const Trace* trace_of(const DTensor& tensor);
// Null where the tape with this number does not know the tensor.
std::shared_ptr<TapeNode> node_of(const DTensor& tensor, uint64_t tape);
DTensor with_nodes(const DTensor& tensor, TapeNodes nodes);

// The result of an application, recorded by the tapes that know an operand. Costs a look at each
// operand where there is none. Does nothing for an operation whose gradient is not recorded.
DTensor record(const Operation& operation, absl::Span<const DTensor> operands,
               const Attributes& attributes, DTensor result);

}  // namespace ops
}  // namespace tessera

#endif  // TESSERA_OPS_TAPE_GRAPH_H_
