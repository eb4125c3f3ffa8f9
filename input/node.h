// SPDX-License-Identifier: Apache-2.0
//
// Node and Reader: the operations that a Dataset is made of. Internal to input/.
//
//   range(10) <- shuffle <- map          read(epoch, i): reads element i of an epoch alone
//   range(10) <- filter <- map           a stream: open() makes a Reader, which reads in order
//
// A node has random access if its number of elements is known, or if it is endless because it is
// repeated: each client then reads only the elements that it needs. A filter, every node after it,
// and a source without a size are streams: every client reads all elements.
//
// Nodes are immutable except for their caches, and thread-safe. A Reader is used by one thread.
#ifndef TESSERA_INPUT_NODE_H_
#define TESSERA_INPUT_NODE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "input/source.h"
#include "input/worker_pool.h"

namespace tessera::input::internal {

// The number of elements in an epoch of a node; not known for a stream.
struct Extent {
  enum class Kind { kKnown, kEndless, kStream };
  Kind kind = Kind::kStream;
  int64_t size = 0;  // for kKnown

  bool has_random_access() const { return kind != Kind::kStream; }
  // The number of indices that are before the end.
  int64_t limit() const;
};

// The positions of a stream's readers, from the last operation to the source.
class Positions {
 public:
  explicit Positions(absl::Span<const int64_t> numbers) : numbers_(numbers) {}
  // InvalidArgument if no number is left, or if the next one is negative.
  StatusOr<int64_t> next();
  bool empty() const { return numbers_.empty(); }

 private:
  absl::Span<const int64_t> numbers_;
};

// Reads a stream in order.
class Reader {
 public:
  virtual ~Reader() = default;
  // Appends the next `count` elements, or fewer at the end. If an element fails, the elements
  // before it are appended; the reader cannot be used afterwards.
  virtual Status read(int64_t count, std::vector<Element>* out) = 0;
  // Appends the numbers from which Positions restores this reader.
  virtual void save(std::vector<int64_t>* positions) const = 0;
  // For a repetition: the repetition of the next element. When a repetition has just ended, it
  // still counts until the next element is read. For others: the epoch at the start
  // (IteratorState::epoch).
  virtual int64_t epoch() const = 0;
  // As epoch(), for the first element of the last read().
  virtual int64_t epoch_read() const { return epoch(); }
};

// Where a reader begins.
struct Start {
  // The epoch of the node.
  int64_t epoch = 0;
  // For a stream that repeats: its first repetition.
  int64_t repetition = 0;
  // Null: at the start of the epoch.
  Positions* positions = nullptr;
};

class Node {
 public:
  virtual ~Node() = default;
  virtual Extent extent() const = 0;
  // Equal for equal descriptions in every process. Functions do not count.
  virtual uint64_t hash() const = 0;
  // The spec of the elements. A mapped node reads element 0 for it.
  virtual StatusOr<std::vector<TensorSpec>> spec() const = 0;
  // Whether spec() reads nothing.
  virtual bool knows_spec() const = 0;
  // Whether reading an element may fail. Clients then have to agree on each step.
  virtual bool can_fail() const = 0;
  // How many elements are worth reading at once.
  virtual int parallelism() const = 0;
  // Whether the last operation, apart from maps, is repeat(). A state's epoch is then the
  // repetition.
  virtual bool is_repetition() const { return false; }
  // For a repetition with random access: the elements of one repetition.
  virtual std::optional<int64_t> repetition_size() const { return std::nullopt; }

  // Element `index` of an epoch. Requires random access and an index below extent().limit().
  virtual StatusOr<Element> read(int64_t epoch, int64_t index) const = 0;
  // A reader of all elements in order.
  virtual StatusOr<std::unique_ptr<Reader>> open(const Start& start) const = 0;

  // The files of the source, and a node with the same description over some of these files
  // (Source::with_files()).
  virtual std::vector<std::string> files() const = 0;
  virtual StatusOr<std::shared_ptr<const Node>> with_files(
      absl::Span<const int64_t> keep) const = 0;

  // Adds which functions of the program run for which elements, for reports of long waits.
  virtual void describe_calls(std::vector<std::string>* texts) const = 0;
};
using NodePtr = std::shared_ptr<const Node>;

// A node on top of another. By default it has the properties of its input.
class Operation : public Node {
 public:
  explicit Operation(NodePtr input) : input_(std::move(input)) {}

  Extent extent() const override { return input().extent(); }
  StatusOr<std::vector<TensorSpec>> spec() const override { return input().spec(); }
  bool knows_spec() const override { return input().knows_spec(); }
  bool can_fail() const override { return input().can_fail(); }
  int parallelism() const override { return input().parallelism(); }
  StatusOr<std::unique_ptr<Reader>> open(const Start& start) const override;
  std::vector<std::string> files() const override { return input().files(); }
  StatusOr<NodePtr> with_files(absl::Span<const int64_t> keep) const override;
  void describe_calls(std::vector<std::string>* texts) const override {
    input().describe_calls(texts);
  }

 protected:
  const Node& input() const { return *input_; }
  // This operation on another input.
  virtual NodePtr with_input(NodePtr input) const = 0;
  // Opens the input's reader. Called after this operation has taken its own positions.
  StatusOr<std::unique_ptr<Reader>> open_input(const Start& start) const {
    return input().open({.epoch = start.epoch, .repetition = 0, .positions = start.positions});
  }
  // Opens a reader of a stream: open() calls it if the operation has no random access.
  virtual StatusOr<std::unique_ptr<Reader>> open_stream(const Start& start) const = 0;

 private:
  const NodePtr input_;
};

// A reader of a node with random access.
StatusOr<std::unique_ptr<Reader>> open_in_order(const Node& node, const Start& start);

// Reads elements of a node with random access, in parallel on the threads of the pool. An error
// names its element: "element 5 of epoch 0: ...".
std::vector<StatusOr<Element>> read_elements(const Node& node, WorkerPool& pool, int64_t epoch,
                                             absl::Span<const int64_t> indices);

// Reads elements and discards them; stops at the end.
Status drop(Reader& reader, int64_t count);

// Calls a function of the program. An exception becomes Unknown.
Status call_guarded(absl::FunctionRef<Status()> fn);

using MapFn = std::function<StatusOr<Element>(Element)>;
using FilterFn = std::function<StatusOr<bool>(const Element&)>;

NodePtr source_node(std::shared_ptr<const Source> source, uint64_t hash, bool can_fail);

// The operations of Dataset. Arguments must be in range.
NodePtr shuffle_node(NodePtr input, uint64_t seed);
NodePtr repeat_node(NodePtr input, std::optional<int64_t> epochs);
NodePtr take_node(NodePtr input, int64_t count);
NodePtr skip_node(NodePtr input, int64_t count);
NodePtr shard_node(NodePtr input, int64_t num, int64_t index);
NodePtr map_node(NodePtr input, MapFn fn, int parallelism);
NodePtr filter_node(NodePtr input, FilterFn keep);
NodePtr cache_node(NodePtr input);

}  // namespace tessera::input::internal

#endif  // TESSERA_INPUT_NODE_H_
