// SPDX-License-Identifier: Apache-2.0
//
// The operations that choose elements and their order: shuffle, repeat, take, skip, shard.
//
// With random access each operation is a function of the index. On a stream each is a reader.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/math.h"
#include "base/stable_hash.h"
#include "compute/random_math.h"
#include "input/node.h"

namespace tessera::input::internal {
namespace {

// The stream number of shuffles: their random numbers differ from the numbers of ops/random.h.
constexpr uint32_t kShuffleStream = 0x73686666;

uint64_t hash_of(absl::string_view name, const Node& input,
                 absl::Span<const int64_t> arguments = {}) {
  return stable_hash(arguments, stable_hash(name, input.hash()));
}

// The operation's own position: a number that counts down or up.
StatusOr<int64_t> own_position(const Start& start, int64_t at_start) {
  if (start.positions == nullptr) return at_start;
  return start.positions->next();
}

class ShuffleNode : public Operation {
 public:
  ShuffleNode(NodePtr input, uint64_t seed) : Operation(std::move(input)), seed_(seed) {}

  uint64_t hash() const override {
    return hash_of("shuffle", input(), {static_cast<int64_t>(seed_)});
  }
  StatusOr<Element> read(int64_t epoch, int64_t index) const override {
    // The seed's block for the epoch is the key of the epoch's permutation.
    const auto low = static_cast<uint32_t>(seed_), high = static_cast<uint32_t>(seed_ >> 32);
    const kernels::PhiloxWords key = kernels::philox_words(
        {{static_cast<uint32_t>(epoch), static_cast<uint32_t>(epoch >> 32), 0, kShuffleStream}},
        low, high);
    return input().read(epoch, kernels::permuted_index(index, extent().size, kShuffleStream,
                                                       key.words[0], key.words[1]));
  }

 private:
  NodePtr with_input(NodePtr input) const override { return shuffle_node(std::move(input), seed_); }
  StatusOr<std::unique_ptr<Reader>> open_stream(const Start&) const override {
    return absl::InternalError("a stream was shuffled");  // Dataset::shuffle() refuses a stream
  }

  const uint64_t seed_;
};

class RepeatReader : public Reader {
 public:
  RepeatReader(const Node& input, std::optional<int64_t> epochs, int64_t base)
      : input_(input), epochs_(epochs), base_(base) {}

  Status start(const Start& start) {
    repetition_ = start.repetition;
    if (start.positions != nullptr) {
      TESSERA_ASSIGN_OR_RETURN(repetition_, start.positions->next());
      TESSERA_ASSIGN_OR_RETURN(num_read_, start.positions->next());
    }
    return open(start.positions);
  }
  Status read(int64_t count, std::vector<Element>* out) override {
    const size_t first = out->size();
    const size_t wanted = first + static_cast<size_t>(count);
    while (out->size() < wanted && !is_over()) {
      const size_t before = out->size();
      if (before == first) epoch_read_ = repetition_;
      TESSERA_RETURN_IF_ERROR(reader_->read(static_cast<int64_t>(wanted - before), out));
      num_read_ += static_cast<int64_t>(out->size() - before);
      if (out->size() == wanted) break;
      // Without this an endless repetition of an empty input would not return.
      is_empty_ = num_read_ == 0 && !epochs_.has_value();
      ++repetition_;
      num_read_ = 0;
      TESSERA_RETURN_IF_ERROR(open(nullptr));
    }
    return absl::OkStatus();
  }
  void save(std::vector<int64_t>* positions) const override {
    positions->push_back(repetition_);
    positions->push_back(num_read_);
    reader_->save(positions);
  }
  int64_t epoch() const override { return repetition_; }
  int64_t epoch_read() const override { return epoch_read_; }

 private:
  bool is_over() const { return is_empty_ || (epochs_.has_value() && repetition_ >= *epochs_); }
  Status open(Positions* positions) {
    const int64_t epoch = saturating_add(base_, repetition_);
    TESSERA_ASSIGN_OR_RETURN(
        reader_, input_.open({.epoch = epoch, .repetition = 0, .positions = positions}));
    return absl::OkStatus();
  }

  const Node& input_;
  const std::optional<int64_t> epochs_;
  const int64_t base_;  // the input's epoch in repetition 0
  int64_t repetition_ = 0;
  int64_t epoch_read_ = 0;
  int64_t num_read_ = 0;  // in this repetition
  bool is_empty_ = false;
  std::unique_ptr<Reader> reader_;
};

class RepeatNode : public Operation {
 public:
  RepeatNode(NodePtr input, std::optional<int64_t> epochs)
      : Operation(std::move(input)), epochs_(epochs) {}

  Extent extent() const override {
    const Extent of_input = input().extent();
    if (epochs_ == 0) return {Extent::Kind::kKnown, 0};
    if (of_input.kind != Extent::Kind::kKnown || of_input.size == 0) return of_input;
    if (!epochs_.has_value()) return {Extent::Kind::kEndless};
    return {Extent::Kind::kKnown, saturating_mul(of_input.size, *epochs_)};
  }
  uint64_t hash() const override {
    return hash_of("repeat", input(), {epochs_.has_value(), epochs_.value_or(0)});
  }
  bool is_repetition() const override { return true; }
  std::optional<int64_t> repetition_size() const override {
    const Extent of_input = input().extent();
    if (of_input.kind != Extent::Kind::kKnown) return std::nullopt;
    return of_input.size;
  }
  StatusOr<Element> read(int64_t epoch, int64_t index) const override {
    const int64_t size = input().extent().limit();
    return input().read(saturating_add(base_of(epoch), index / size), index % size);
  }

 private:
  // The input's epoch in the first repetition.
  int64_t base_of(int64_t epoch) const { return saturating_mul(epoch, epochs_.value_or(0)); }
  NodePtr with_input(NodePtr input) const override {
    return repeat_node(std::move(input), epochs_);
  }
  StatusOr<std::unique_ptr<Reader>> open_stream(const Start& start) const override {
    auto reader = std::make_unique<RepeatReader>(input(), epochs_, base_of(start.epoch));
    TESSERA_RETURN_IF_ERROR(reader->start(start));
    return reader;
  }

  const std::optional<int64_t> epochs_;
};

class TakeReader : public Reader {
 public:
  TakeReader(std::unique_ptr<Reader> input, int64_t epoch, int64_t left)
      : input_(std::move(input)), epoch_(epoch), left_(left) {}

  Status read(int64_t count, std::vector<Element>* out) override {
    const size_t before = out->size();
    TESSERA_RETURN_IF_ERROR(input_->read(std::min(count, left_), out));
    left_ -= static_cast<int64_t>(out->size() - before);
    return absl::OkStatus();
  }
  void save(std::vector<int64_t>* positions) const override {
    positions->push_back(left_);
    input_->save(positions);
  }
  int64_t epoch() const override { return epoch_; }

 private:
  const std::unique_ptr<Reader> input_;
  const int64_t epoch_;
  int64_t left_;
};

class TakeNode : public Operation {
 public:
  TakeNode(NodePtr input, int64_t count) : Operation(std::move(input)), count_(count) {}

  Extent extent() const override {
    const Extent of_input = input().extent();
    if (!of_input.has_random_access()) return of_input;
    return {Extent::Kind::kKnown, std::min(count_, of_input.limit())};
  }
  uint64_t hash() const override { return hash_of("take", input(), {count_}); }
  StatusOr<Element> read(int64_t epoch, int64_t index) const override {
    return input().read(epoch, index);
  }

 private:
  NodePtr with_input(NodePtr input) const override { return take_node(std::move(input), count_); }
  StatusOr<std::unique_ptr<Reader>> open_stream(const Start& start) const override {
    TESSERA_ASSIGN_OR_RETURN(const int64_t left, own_position(start, count_));
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Reader> reader, open_input(start));
    return std::make_unique<TakeReader>(std::move(reader), start.epoch, left);
  }

  const int64_t count_;
};

// Skips `gap` elements before the first one, and `stride` - 1 between two. Implements skip and
// shard.
class StrideReader : public Reader {
 public:
  StrideReader(std::unique_ptr<Reader> input, int64_t epoch, int64_t gap, int64_t stride)
      : input_(std::move(input)), epoch_(epoch), stride_(stride), gap_(gap) {}

  Status read(int64_t count, std::vector<Element>* out) override {
    while (count > 0) {
      TESSERA_RETURN_IF_ERROR(drop(*input_, gap_));
      gap_ = 0;
      const int64_t wanted = stride_ == 1 ? count : 1;
      const size_t before = out->size();
      TESSERA_RETURN_IF_ERROR(input_->read(wanted, out));
      if (static_cast<int64_t>(out->size() - before) < wanted) return absl::OkStatus();
      gap_ = stride_ - 1;
      count -= wanted;
    }
    return absl::OkStatus();
  }
  void save(std::vector<int64_t>* positions) const override {
    positions->push_back(gap_);
    input_->save(positions);
  }
  int64_t epoch() const override { return epoch_; }

 private:
  const std::unique_ptr<Reader> input_;
  const int64_t epoch_;
  const int64_t stride_;
  int64_t gap_;
};

// Elements first, first + stride, first + 2 stride, ...
class StrideNode : public Operation {
 public:
  StrideNode(NodePtr input, int64_t first, int64_t stride)
      : Operation(std::move(input)), first_(first), stride_(stride) {}

  Extent extent() const override {
    const Extent of_input = input().extent();
    if (of_input.kind != Extent::Kind::kKnown) return of_input;
    const int64_t left = std::max<int64_t>(of_input.size - first_, 0);
    return {Extent::Kind::kKnown, left / stride_ + (left % stride_ != 0)};
  }
  uint64_t hash() const override { return hash_of("stride", input(), {first_, stride_}); }
  StatusOr<Element> read(int64_t epoch, int64_t index) const override {
    return input().read(epoch, saturating_add(saturating_mul(index, stride_), first_));
  }

 private:
  NodePtr with_input(NodePtr input) const override {
    return std::make_shared<const StrideNode>(std::move(input), first_, stride_);
  }
  StatusOr<std::unique_ptr<Reader>> open_stream(const Start& start) const override {
    TESSERA_ASSIGN_OR_RETURN(const int64_t gap, own_position(start, first_));
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Reader> reader, open_input(start));
    return std::make_unique<StrideReader>(std::move(reader), start.epoch, gap, stride_);
  }

  const int64_t first_;
  const int64_t stride_;
};

}  // namespace

NodePtr shuffle_node(NodePtr input, uint64_t seed) {
  return std::make_shared<const ShuffleNode>(std::move(input), seed);
}
NodePtr repeat_node(NodePtr input, std::optional<int64_t> epochs) {
  return std::make_shared<const RepeatNode>(std::move(input), epochs);
}
NodePtr take_node(NodePtr input, int64_t count) {
  return std::make_shared<const TakeNode>(std::move(input), count);
}
NodePtr skip_node(NodePtr input, int64_t count) {
  return std::make_shared<const StrideNode>(std::move(input), count, 1);
}
NodePtr shard_node(NodePtr input, int64_t num, int64_t index) {
  return std::make_shared<const StrideNode>(std::move(input), index, num);
}

}  // namespace tessera::input::internal
