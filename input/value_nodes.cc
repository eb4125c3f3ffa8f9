// SPDX-License-Identifier: Apache-2.0
//
// The operations that read the values of elements: map, filter, cache.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/math.h"
#include "base/stable_hash.h"
#include "input/node.h"
#include "input/running_calls.h"

namespace tessera::input::internal {
namespace {

// A function of the program, and the elements for which it is running.
template <class Fn>
struct Tracked {
  const Fn fn;
  RunningCalls calls = {};
};
using Mapping = Tracked<MapFn>;
using Filter = Tracked<FilterFn>;

StatusOr<Element> call_map(const Mapping& map, int64_t index, Element element) {
  const RunningCalls::Call call(map.calls, index);
  StatusOr<Element> result = Element();
  const Status status = call_guarded([&] {
    result = map.fn(std::move(element));
    return result.ok() ? check_arrays(*result) : result.status();
  });
  if (!status.ok()) return with_context(status, "map");
  return result;
}

class MapReader : public Reader {
 public:
  MapReader(std::unique_ptr<Reader> input, const Mapping& map, int64_t position,
            std::unique_ptr<WorkerPool> pool)
      : input_(std::move(input)), map_(map), position_(position), pool_(std::move(pool)) {}

  Status read(int64_t count, std::vector<Element>* out) override {
    const size_t first = out->size();
    const Status status = input_->read(count, out);
    std::vector<Status> failed(out->size() - first);
    pool_->run(static_cast<int64_t>(failed.size()), [&](int64_t i) {
      StatusOr<Element> mapped = call_map(map_, position_ + i, std::move((*out)[first + i]));
      failed[i] = mapped.status();
      if (mapped.ok()) (*out)[first + i] = *std::move(mapped);
    });
    for (size_t i = 0; i < failed.size(); ++i, ++position_) {
      if (failed[i].ok()) continue;
      out->resize(first + i);
      return with_context(failed[i], absl::StrCat("element ", position_));
    }
    return status;
  }
  void save(std::vector<int64_t>* positions) const override {
    positions->push_back(position_);
    input_->save(positions);
  }
  int64_t epoch() const override { return input_->epoch(); }
  int64_t epoch_read() const override { return input_->epoch_read(); }

 private:
  const std::unique_ptr<Reader> input_;
  const Mapping& map_;
  int64_t position_;
  const std::unique_ptr<WorkerPool> pool_;
};

class MapNode : public Operation {
 public:
  MapNode(NodePtr input, MapFn fn, int parallelism)
      : Operation(std::move(input)), map_{std::move(fn)}, parallelism_(parallelism) {}

  uint64_t hash() const override { return stable_hash("map", input().hash()); }
  StatusOr<std::vector<TensorSpec>> spec() const override {
    std::vector<Element> first;
    if (extent().has_random_access()) {
      if (extent().limit() == 0) return absl::OutOfRangeError("the data set is empty");
      TESSERA_ASSIGN_OR_RETURN(Element element, read(0, 0));
      first.push_back(std::move(element));
    } else {
      TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Reader> reader, open({}));
      TESSERA_RETURN_IF_ERROR(reader->read(1, &first));
      if (first.empty()) return absl::OutOfRangeError("the data set is empty");
    }
    std::vector<TensorSpec> spec;
    for (const HostArray& array : first[0]) spec.push_back({array.dtype, array.shape});
    return spec;
  }
  bool knows_spec() const override { return false; }
  bool can_fail() const override { return true; }
  int parallelism() const override { return std::max(parallelism_, input().parallelism()); }
  bool is_repetition() const override { return input().is_repetition(); }
  std::optional<int64_t> repetition_size() const override { return input().repetition_size(); }
  StatusOr<Element> read(int64_t epoch, int64_t index) const override {
    TESSERA_ASSIGN_OR_RETURN(Element element, input().read(epoch, index));
    return call_map(map_, index, std::move(element));
  }
  void describe_calls(std::vector<std::string>* texts) const override {
    map_.calls.describe("map", texts);
    Operation::describe_calls(texts);
  }

 private:
  NodePtr with_input(NodePtr input) const override {
    return map_node(std::move(input), map_.fn, parallelism_);
  }
  StatusOr<std::unique_ptr<Reader>> open_stream(const Start& start) const override {
    int64_t position = 0;
    if (start.positions != nullptr) {
      TESSERA_ASSIGN_OR_RETURN(position, start.positions->next());
    }
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Reader> reader, input().open(start));
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<WorkerPool> pool, WorkerPool::start(parallelism_));
    return std::make_unique<MapReader>(std::move(reader), map_, position, std::move(pool));
  }

  const Mapping map_;
  const int parallelism_;
};

class FilterReader : public Reader {
 public:
  FilterReader(std::unique_ptr<Reader> input, const Filter& keep, int64_t epoch, int64_t position)
      : input_(std::move(input)), keep_(keep), epoch_(epoch), position_(position) {}

  // Asks the input for at most as many elements as are missing, so that none is left over.
  Status read(int64_t count, std::vector<Element>* out) override {
    const size_t wanted = out->size() + static_cast<size_t>(count);
    std::vector<Element> read;
    while (out->size() < wanted) {
      read.clear();
      const size_t missing = wanted - out->size();
      const Status status = input_->read(static_cast<int64_t>(missing), &read);
      for (Element& element : read) {
        StatusOr<bool> keep = false;
        const RunningCalls::Call call(keep_.calls, position_);
        const Status called = call_guarded([&] {
          keep = keep_.fn(element);
          return keep.status();
        });
        if (!called.ok()) {
          return with_context(called, absl::StrCat("filter: element ", position_));
        }
        if (*keep) out->push_back(std::move(element));
        ++position_;
      }
      TESSERA_RETURN_IF_ERROR(status);
      if (read.size() < missing) break;
    }
    return absl::OkStatus();
  }
  void save(std::vector<int64_t>* positions) const override {
    positions->push_back(position_);
    input_->save(positions);
  }
  int64_t epoch() const override { return epoch_; }

 private:
  const std::unique_ptr<Reader> input_;
  const Filter& keep_;
  const int64_t epoch_;
  int64_t position_;  // elements of the input that were examined
};

class FilterNode : public Operation {
 public:
  FilterNode(NodePtr input, FilterFn keep) : Operation(std::move(input)), keep_{std::move(keep)} {}

  Extent extent() const override { return {Extent::Kind::kStream}; }
  uint64_t hash() const override { return stable_hash("filter", input().hash()); }
  bool can_fail() const override { return true; }
  StatusOr<Element> read(int64_t, int64_t) const override {
    return absl::InternalError("a stream was read at an index");
  }
  void describe_calls(std::vector<std::string>* texts) const override {
    keep_.calls.describe("filter", texts);
    Operation::describe_calls(texts);
  }

 private:
  NodePtr with_input(NodePtr input) const override {
    return filter_node(std::move(input), keep_.fn);
  }
  StatusOr<std::unique_ptr<Reader>> open_stream(const Start& start) const override {
    int64_t position = 0;
    if (start.positions != nullptr) {
      TESSERA_ASSIGN_OR_RETURN(position, start.positions->next());
    }
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Reader> reader, open_input(start));
    return std::make_unique<FilterReader>(std::move(reader), keep_, start.epoch, position);
  }

  const Filter keep_;
};

// Keeps each element in memory after its first read. Every epoch has the elements of epoch 0 of the
// input: an iterator that begins in a later epoch has the same order as an iterator that reached
// that epoch.
class CacheNode : public Operation {
 public:
  using Operation::Operation;

  uint64_t hash() const override { return stable_hash("cache", input().hash()); }
  StatusOr<Element> read(int64_t, int64_t index) const override {
    Stripe& stripe = stripes_[index % kNumStripes];
    // Held while the input is read, so that each element is read once.
    const std::lock_guard<std::mutex> lock(stripe.mutex);
    const auto found = stripe.elements.find(index);
    if (found != stripe.elements.end()) return found->second;
    TESSERA_ASSIGN_OR_RETURN(Element element, input().read(0, index));
    stripe.elements.emplace(index, element);
    return element;
  }

  // Appends elements of a stream from `position` on.
  Status read_stream(int64_t position, int64_t count, std::vector<Element>* out) const {
    const std::lock_guard<std::mutex> lock(stream_mutex_);
    const size_t end = static_cast<size_t>(saturating_add(position, count));
    Status status;
    if (end > stream_.size() && !stream_ended_) {
      if (reader_ == nullptr) {
        TESSERA_ASSIGN_OR_RETURN(reader_, input().open({}));
        TESSERA_RETURN_IF_ERROR(drop(*reader_, static_cast<int64_t>(stream_.size())));
      }
      status = reader_->read(static_cast<int64_t>(end - stream_.size()), &stream_);
      stream_ended_ = status.ok() && stream_.size() < end;
      if (!status.ok()) reader_ = nullptr;
    }
    for (size_t i = static_cast<size_t>(position); i < std::min(end, stream_.size()); ++i) {
      out->push_back(stream_[i]);
    }
    return status;
  }

 private:
  static constexpr int64_t kNumStripes = 64;
  struct Stripe {
    std::mutex mutex;  // guards elements
    absl::flat_hash_map<int64_t, Element> elements;
  };

  NodePtr with_input(NodePtr input) const override { return cache_node(std::move(input)); }
  StatusOr<std::unique_ptr<Reader>> open_stream(const Start& start) const override;

  mutable Stripe stripes_[kNumStripes];
  mutable std::mutex stream_mutex_;  // guards the members below
  mutable std::vector<Element> stream_;
  mutable bool stream_ended_ = false;
  mutable std::unique_ptr<Reader> reader_;  // at the end of stream_; null: not opened
};

class CacheReader : public Reader {
 public:
  CacheReader(const CacheNode& node, int64_t epoch, int64_t position)
      : node_(node), epoch_(epoch), position_(position) {}

  Status read(int64_t count, std::vector<Element>* out) override {
    const size_t before = out->size();
    const Status status = node_.read_stream(position_, count, out);
    position_ += static_cast<int64_t>(out->size() - before);
    return status;
  }
  void save(std::vector<int64_t>* positions) const override { positions->push_back(position_); }
  int64_t epoch() const override { return epoch_; }

 private:
  const CacheNode& node_;
  const int64_t epoch_;
  int64_t position_;
};

StatusOr<std::unique_ptr<Reader>> CacheNode::open_stream(const Start& start) const {
  int64_t position = 0;
  if (start.positions != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(position, start.positions->next());
  }
  return std::make_unique<CacheReader>(*this, start.epoch, position);
}

}  // namespace

NodePtr map_node(NodePtr input, MapFn fn, int parallelism) {
  return std::make_shared<const MapNode>(std::move(input), std::move(fn), parallelism);
}
NodePtr filter_node(NodePtr input, FilterFn keep) {
  return std::make_shared<const FilterNode>(std::move(input), std::move(keep));
}
NodePtr cache_node(NodePtr input) { return std::make_shared<const CacheNode>(std::move(input)); }

}  // namespace tessera::input::internal
