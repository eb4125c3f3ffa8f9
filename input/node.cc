// SPDX-License-Identifier: Apache-2.0
//
// The common part of nodes, and the node of a source.
#include "input/node.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/exception_status.h"
#include "base/math.h"
#include "base/stable_hash.h"
#include "input/running_calls.h"

namespace tessera::input::internal {
namespace {

// "element 5 of epoch 0: ...". For a repeated node: the element and the epoch of the repetition.
Status at_element(const Node& node, const Status& status, int64_t epoch, int64_t index) {
  if (const std::optional<int64_t> size = node.repetition_size(); size.has_value() && *size > 0) {
    epoch = index / *size;
    index %= *size;
  }
  return with_context(status, absl::StrCat("element ", index, " of epoch ", epoch));
}

class InOrderReader : public Reader {
 public:
  InOrderReader(const Node& node, int64_t epoch, int64_t position, std::unique_ptr<WorkerPool> pool)
      : node_(node), epoch_(epoch), position_(position), pool_(std::move(pool)) {}

  Status read(int64_t count, std::vector<Element>* out) override {
    const int64_t end = std::min(saturating_add(position_, count), node_.extent().limit());
    std::vector<int64_t> indices;
    for (int64_t i = position_; i < end; ++i) indices.push_back(i);
    for (StatusOr<Element>& element : read_elements(node_, *pool_, epoch_, indices)) {
      TESSERA_RETURN_IF_ERROR(element);
      out->push_back(*std::move(element));
      ++position_;
    }
    return absl::OkStatus();
  }
  void save(std::vector<int64_t>* positions) const override { positions->push_back(position_); }
  int64_t epoch() const override { return epoch_; }

 private:
  const Node& node_;
  const int64_t epoch_;
  int64_t position_;
  const std::unique_ptr<WorkerPool> pool_;
};

class SourceReader : public Reader {
 public:
  SourceReader(const Node& node, int64_t epoch) : node_(node), epoch_(epoch) {}

  Status read(int64_t count, std::vector<Element>* out) override {
    for (int64_t i = 0; i < count && !ended_; ++i) {
      StatusOr<Element> element = node_.read(epoch_, position_);
      if (absl::IsOutOfRange(element.status())) {
        ended_ = true;
      } else {
        if (!element.ok()) return at_element(node_, element.status(), epoch_, position_);
        out->push_back(*std::move(element));
        ++position_;
      }
    }
    return absl::OkStatus();
  }
  void save(std::vector<int64_t>* positions) const override { positions->push_back(position_); }
  int64_t epoch() const override { return epoch_; }

 private:
  const Node& node_;
  const int64_t epoch_;
  int64_t position_ = 0;
  bool ended_ = false;
};

class SourceNode : public Node {
 public:
  SourceNode(std::shared_ptr<const Source> source, uint64_t hash, bool can_fail)
      : source_(std::move(source)),
        spec_(source_->spec()),
        size_(source_->size()),
        hash_(hash),
        can_fail_(can_fail) {}

  Extent extent() const override {
    if (!size_.has_value()) return {Extent::Kind::kStream};
    return {Extent::Kind::kKnown, *size_};
  }
  uint64_t hash() const override { return hash_; }
  StatusOr<std::vector<TensorSpec>> spec() const override { return spec_; }
  bool knows_spec() const override { return true; }
  bool can_fail() const override { return can_fail_; }
  int parallelism() const override { return 1; }

  StatusOr<Element> read(int64_t, int64_t index) const override {
    StatusOr<Element> element = Element();
    const RunningCalls::Call call(calls_, index);
    TESSERA_RETURN_IF_ERROR(call_guarded([&] {
      element = source_->read(index);
      return element.status();
    }));
    TESSERA_RETURN_IF_ERROR(check_element(spec_, *element));
    return element;
  }
  StatusOr<std::unique_ptr<Reader>> open(const Start& start) const override {
    if (size_.has_value()) return open_in_order(*this, start);
    auto reader = std::make_unique<SourceReader>(*this, start.epoch);
    if (start.positions != nullptr) {
      // A stream is read in order, so reaching a position takes all reads before it.
      TESSERA_ASSIGN_OR_RETURN(const int64_t position, start.positions->next());
      TESSERA_RETURN_IF_ERROR(drop(*reader, position));
    }
    return reader;
  }

  std::vector<std::string> files() const override { return source_->files(); }
  StatusOr<NodePtr> with_files(absl::Span<const int64_t> keep) const override {
    TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<const Source> source, source_->with_files(keep));
    return source_node(std::move(source), stable_hash(keep, hash_), can_fail_);
  }
  void describe_calls(std::vector<std::string>* texts) const override {
    calls_.describe("the source", texts);
  }

 private:
  const std::shared_ptr<const Source> source_;
  const std::vector<TensorSpec> spec_;
  const std::optional<int64_t> size_;
  const uint64_t hash_;
  const bool can_fail_;
  RunningCalls calls_;
};

}  // namespace

int64_t Extent::limit() const {
  return kind == Kind::kKnown ? size : std::numeric_limits<int64_t>::max();
}

StatusOr<int64_t> Positions::next() {
  if (numbers_.empty() || numbers_[0] < 0) {
    return absl::InvalidArgumentError(
        numbers_.empty() ? absl::StrCat("the iterator state has too few pipeline positions")
                         : absl::StrCat("the iterator state has the pipeline position ",
                                        numbers_[0], "; positions are not negative"));
  }
  const int64_t number = numbers_[0];
  numbers_.remove_prefix(1);
  return number;
}

Status call_guarded(absl::FunctionRef<Status()> fn) { return tessera::call_guarded<Status>(fn); }

Status drop(Reader& reader, int64_t count) {
  constexpr int64_t kBlock = 256;
  std::vector<Element> dropped;
  while (count > 0) {
    dropped.clear();
    const int64_t wanted = std::min(count, kBlock);
    TESSERA_RETURN_IF_ERROR(reader.read(wanted, &dropped));
    if (static_cast<int64_t>(dropped.size()) < wanted) return absl::OkStatus();
    count -= wanted;
  }
  return absl::OkStatus();
}

std::vector<StatusOr<Element>> read_elements(const Node& node, WorkerPool& pool, int64_t epoch,
                                             absl::Span<const int64_t> indices) {
  std::vector<StatusOr<Element>> elements(indices.size(), Element());
  pool.run(static_cast<int64_t>(indices.size()), [&](int64_t i) {
    elements[i] = node.read(epoch, indices[i]);
    if (!elements[i].ok()) {
      elements[i] = at_element(node, elements[i].status(), epoch, indices[i]);
    }
  });
  return elements;
}

StatusOr<std::unique_ptr<Reader>> open_in_order(const Node& node, const Start& start) {
  int64_t position = 0;
  if (start.positions != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(position, start.positions->next());
  }
  position = std::min(position, node.extent().limit());
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<WorkerPool> pool, WorkerPool::start(node.parallelism()));
  return std::make_unique<InOrderReader>(node, start.epoch, position, std::move(pool));
}

StatusOr<std::unique_ptr<Reader>> Operation::open(const Start& start) const {
  return extent().has_random_access() ? open_in_order(*this, start) : open_stream(start);
}

StatusOr<NodePtr> Operation::with_files(absl::Span<const int64_t> keep) const {
  TESSERA_ASSIGN_OR_RETURN(NodePtr input, input_->with_files(keep));
  return with_input(std::move(input));
}

NodePtr source_node(std::shared_ptr<const Source> source, uint64_t hash, bool can_fail) {
  return std::make_shared<const SourceNode>(std::move(source), hash, can_fail);
}

}  // namespace tessera::input::internal
