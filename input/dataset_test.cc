// SPDX-License-Identifier: Apache-2.0
//
// Data sets in one process, against a dense oracle: each operation is applied to a vector of the
// elements of an epoch. Comments and test names refer to rows of tests/facts/input.md.
#include "input/dataset.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/host_array.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "input/iterator_state.h"
#include "tests/support/leaks.h"
#include "tests/support/matchers.h"

namespace tessera::input {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using ::testing::Optional;
using testing::StatusIs;

using Numbers = std::vector<int64_t>;

Numbers numbers_of(const HostArray& array) {
  const absl::Span<const int64_t> view = array.view<int64_t>();
  return Numbers(view.begin(), view.end());
}

// The numbers of each batch up to the end, or to `limit` batches.
StatusOr<std::vector<Numbers>> read_batches(HostIterator& iterator, int limit = 1000) {
  std::vector<Numbers> batches;
  for (int i = 0; i < limit; ++i) {
    TESSERA_ASSIGN_OR_RETURN(const std::optional<Element> batch, iterator.next());
    if (!batch.has_value()) break;
    batches.push_back(numbers_of((*batch)[0]));
  }
  return batches;
}
StatusOr<std::vector<Numbers>> read_batches(const Dataset& dataset, const IteratorState& from = {},
                                            int limit = 1000) {
  TESSERA_ASSIGN_OR_RETURN(HostIterator iterator, dataset.iterate(from));
  return read_batches(iterator, limit);
}
// The numbers of a data set without batches.
Numbers read_numbers(const Dataset& dataset, const IteratorState& from = {}, int limit = 1000) {
  Numbers numbers;
  const StatusOr<std::vector<Numbers>> elements = read_batches(dataset, from, limit);
  EXPECT_THAT(elements, IsOk());
  if (!elements.ok()) return {};
  for (const Numbers& element : *elements) numbers.push_back(element[0]);
  return numbers;
}

StatusOr<bool> is_odd(const Element& element) { return element[0].view<int64_t>()[0] % 2 == 1; }
StatusOr<Element> times_ten(Element element) {
  element[0].view<int64_t>()[0] *= 10;
  return element;
}
// The numbers 0 to n - 1 as a stream.
Dataset stream_of(int64_t n) {
  return *Dataset::generator({{DType::kInt64, {}}},
                             [n](int64_t index) -> StatusOr<std::optional<Element>> {
                               if (index == n) return std::nullopt;
                               return Element{HostArray::scalar<int64_t>(index)};
                             });
}

// The operations that tests combine. Each has its oracle on the elements of an epoch; `made(epoch)`
// gives the elements of the input.
struct Made {
  Dataset dataset;
  std::function<Numbers(int64_t epoch)> elements;
};
Made made_of_range(int64_t n) {
  return {Dataset::range(n), [n](int64_t) {
            Numbers numbers(static_cast<size_t>(n));
            for (int64_t i = 0; i < n; ++i) numbers[i] = i;
            return numbers;
          }};
}
Made made_of_stream(int64_t n) { return {stream_of(n), made_of_range(n).elements}; }

struct OperationCase {
  const char* name;
  std::function<Made(Made)> apply;
};
const OperationCase kOperations[] = {
    {"map",
     [](Made m) -> Made {
       return {m.dataset.map(times_ten), [m](int64_t epoch) {
                 Numbers numbers = m.elements(epoch);
                 for (int64_t& number : numbers) number *= 10;
                 return numbers;
               }};
     }},
    {"parallel_map",
     [](Made m) -> Made {
       return {m.dataset.map(times_ten, 3), [m](int64_t epoch) {
                 Numbers numbers = m.elements(epoch);
                 for (int64_t& number : numbers) number *= 10;
                 return numbers;
               }};
     }},
    {"filter",
     [](Made m) -> Made {
       return {m.dataset.filter([](const Element& element) -> StatusOr<bool> {
                 return element[0].view<int64_t>()[0] % 3 != 1;
               }),
               [m](int64_t epoch) {
                 Numbers kept;
                 for (const int64_t number : m.elements(epoch)) {
                   if (number % 3 != 1) kept.push_back(number);
                 }
                 return kept;
               }};
     }},
    {"take",
     [](Made m) -> Made {
       return {m.dataset.take(5), [m](int64_t epoch) {
                 Numbers numbers = m.elements(epoch);
                 numbers.resize(std::min<size_t>(numbers.size(), 5));
                 return numbers;
               }};
     }},
    {"skip",
     [](Made m) -> Made {
       return {m.dataset.skip(2), [m](int64_t epoch) {
                 Numbers numbers = m.elements(epoch);
                 numbers.erase(numbers.begin(),
                               numbers.begin() + std::min<size_t>(numbers.size(), 2));
                 return numbers;
               }};
     }},
    {"shard",
     [](Made m) -> Made {
       return {m.dataset.shard(3, 1), [m](int64_t epoch) {
                 Numbers own;
                 const Numbers numbers = m.elements(epoch);
                 for (size_t i = 1; i < numbers.size(); i += 3) own.push_back(numbers[i]);
                 return own;
               }};
     }},
    {"repeat",
     [](Made m) -> Made {
       return {m.dataset.repeat(2), [m](int64_t epoch) {
                 Numbers twice = m.elements(2 * epoch);
                 for (const int64_t number : m.elements(2 * epoch + 1)) twice.push_back(number);
                 return twice;
               }};
     }},
    {"cache",
     [](Made m) -> Made {
       return {m.dataset.cache(), [m](int64_t) { return m.elements(0); }};
     }},
    {"shuffle",
     [](Made m) -> Made {
       const Dataset shuffled = m.dataset.shuffle(5);
       // The only oracle of the order is the operation on the indices.
       return {shuffled, [m](int64_t epoch) {
                 const Numbers numbers = m.elements(epoch);
                 const Dataset range =
                     Dataset::range(static_cast<int64_t>(numbers.size())).shuffle(5);
                 Numbers result;
                 for (const int64_t i : read_numbers(range, {.epoch = epoch})) {
                   result.push_back(numbers[i]);
                 }
                 return result;
               }};
     }},
};

std::vector<Numbers> in_batches(const Numbers& numbers, size_t size) {
  std::vector<Numbers> batches;
  for (size_t i = 0; i < numbers.size(); i += size) {
    batches.emplace_back(numbers.begin() + i, numbers.begin() + std::min(numbers.size(), i + size));
  }
  return batches;
}

// Every batch from the start, and from the state after each batch, through its text.
void expect_batches(const Dataset& dataset, const std::vector<Numbers>& batches, int64_t epoch) {
  TESSERA_ASSERT_OK_AND_ASSIGN(HostIterator iterator, dataset.iterate({.epoch = epoch}));
  for (size_t step = 0; step <= batches.size(); ++step) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const IteratorState state,
                                 IteratorState::parse(iterator.state().to_string()));
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<Numbers> rest, read_batches(dataset, state));
    EXPECT_EQ(rest, std::vector<Numbers>(batches.begin() + step, batches.end()))
        << state.to_string();
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<Numbers> one, read_batches(iterator, 1));
    EXPECT_EQ(one.size(), step < batches.size());
    if (!one.empty()) {
      EXPECT_EQ(one[0], batches[step]);
    }
  }
}

// All pairs of operations on a range and on a stream, two epochs, resumed at every position.
TEST(DatasetTest, OperationsAgreeWithTheOracleAndResumeEverywhere) {
  int checked = 0;
  for (const bool is_stream : {false, true}) {
    for (const OperationCase& first : kOperations) {
      for (const OperationCase& second : kOperations) {
        const Made made =
            second.apply(first.apply(is_stream ? made_of_stream(11) : made_of_range(11)));
        if (!made.dataset.status().ok()) {  // shuffle of a stream
          EXPECT_THAT(made.dataset.status(), StatusIs(StatusCode::kInvalidArgument,
                                                      HasSubstr("a stream has no random access")));
          continue;
        }
        for (const int64_t epoch : {0, 1}) {
          SCOPED_TRACE(absl::StrCat(is_stream ? "stream " : "range ", first.name, " ", second.name,
                                    " epoch ", epoch));
          const Numbers numbers = made.elements(epoch);
          // A repetition has its own epochs.
          if (std::string(second.name) == "repeat" && epoch == 1) continue;
          const bool maps_repetition =
              std::string(first.name) == "repeat" && absl::StrContains(second.name, "map");
          if (maps_repetition && epoch == 1) continue;
          expect_batches(made.dataset, in_batches(numbers, 1), epoch);
          expect_batches(made.dataset.batch(4), in_batches(numbers, 4), epoch);
          ++checked;
        }
      }
    }
  }
  EXPECT_GT(checked, 200);  // The loops did run.
}

// Three operations; the middle one makes a stream.
TEST(DatasetTest, StreamsResumeBelowTwoOperations) {
  for (const OperationCase& first : kOperations) {
    for (const OperationCase& last : kOperations) {
      if (std::string(last.name) == "shuffle") continue;
      SCOPED_TRACE(absl::StrCat(first.name, " filter ", last.name));
      const Made made = last.apply(kOperations[2].apply(first.apply(made_of_range(13))));
      expect_batches(made.dataset.batch(2), in_batches(made.elements(0), 2), 0);
    }
  }
}

TEST(DatasetTest, EveryElementOnceForAllSizesAndBatches) {
  for (int64_t n = 0; n <= 40; ++n) {
    for (int64_t size = 1; size <= 9; ++size) {
      SCOPED_TRACE(absl::StrCat(n, " in batches of ", size));
      TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<Numbers> batches,
                                   read_batches(Dataset::range(n).batch(size)));
      EXPECT_EQ(batches, in_batches(made_of_range(n).elements(0), size));
      EXPECT_THAT(Dataset::range(n).batch(size).cardinality(),
                  Optional(static_cast<int64_t>(batches.size())));
      TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<Numbers> whole,
                                   read_batches(Dataset::range(n).batch(size, Remainder::kDrop)));
      EXPECT_EQ(static_cast<int64_t>(whole.size()), n / size);
      TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<Numbers> shuffled,
                                   read_batches(Dataset::range(n).shuffle(n).batch(size)));
      std::set<int64_t> all;
      for (const Numbers& batch : shuffled) all.insert(batch.begin(), batch.end());
      EXPECT_EQ(static_cast<int64_t>(all.size()), n);
    }
  }
}

// Rows of tests/facts/input.md.

TEST(DatasetTest, ShuffleIsAPermutation) {
  const Dataset shuffled = Dataset::range(1000).shuffle(7);
  const Numbers first = read_numbers(shuffled);
  const Numbers second = read_numbers(shuffled, {.epoch = 1});
  EXPECT_EQ(std::set<int64_t>(first.begin(), first.end()).size(), 1000u);
  EXPECT_EQ(std::set<int64_t>(second.begin(), second.end()).size(), 1000u);
  EXPECT_NE(first, second);
  EXPECT_EQ(first, read_numbers(shuffled));
  EXPECT_NE(first, read_numbers(Dataset::range(1000).shuffle(8)));
  EXPECT_NE(first, read_numbers(Dataset::range(1000)));
  // Endless repetition goes through the same epochs.
  const Numbers both = read_numbers(shuffled.repeat(), {}, 2000);
  EXPECT_EQ(Numbers(both.begin(), both.begin() + 1000), first);
  EXPECT_EQ(Numbers(both.begin() + 1000, both.end()), second);
}

// The order is part of the API: a state saved by one version is read by another.
TEST(DatasetTest, TheOrderOfAShuffleStays) {
  EXPECT_THAT(read_numbers(Dataset::range(8).shuffle(7)), ElementsAre(2, 7, 0, 5, 3, 1, 6, 4));
}

TEST(DatasetTest, ShuffleOfAStream) {
  EXPECT_THAT(
      stream_of(3).shuffle(1).iterate(),
      StatusIs(StatusCode::kInvalidArgument, AllOf(HasSubstr("a stream has no random access"),
                                                   HasSubstr("shuffle before filter"))));
}

TEST(DatasetTest, RepeatAcrossEpochs) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<Numbers> batches,
                               read_batches(Dataset::range(3).repeat(2).batch(2)));
  EXPECT_THAT(batches, ElementsAre(Numbers{0, 1}, Numbers{2, 0}, Numbers{1, 2}));
}

TEST(DatasetTest, Cardinality) {
  EXPECT_THAT(Dataset::range(5).batch(2).cardinality(), Optional(3));
  EXPECT_THAT(Dataset::range(5).batch(2, Remainder::kDrop).cardinality(), Optional(2));
  EXPECT_EQ(Dataset::range(5).repeat().batch(2).cardinality(), std::nullopt);
  EXPECT_THAT(Dataset::range(5).repeat(3).cardinality(), Optional(15));
  EXPECT_THAT(Dataset::range(5).repeat().take(7).cardinality(), Optional(7));
  EXPECT_EQ(Dataset::range(5).filter(is_odd).cardinality(), std::nullopt);
  EXPECT_EQ(Dataset::range(-5).cardinality(), std::nullopt);
}

TEST(DatasetTest, SpecKeepAndSpecDrop) {
  EXPECT_THAT(Dataset::range(8).batch(4).element_spec(),
              ElementsAre(TensorSpec{DType::kInt64, {-1}}));
  EXPECT_THAT(Dataset::range(8).batch(4, Remainder::kDrop).element_spec(),
              ElementsAre(TensorSpec{DType::kInt64, {4}}));
}

TEST(DatasetTest, TheSpecOfAMappedDataSetIsThatOfItsFirstElement) {
  const auto pair = [](Element element) -> StatusOr<Element> {
    element.push_back(HostArray::of<float>({1, 2}, {2}));
    return element;
  };
  const auto expected =
      ElementsAre(TensorSpec{DType::kInt64, {}}, TensorSpec{DType::kFloat32, {2}});
  EXPECT_THAT(Dataset::range(8).map(pair).element_spec(), expected);
  EXPECT_THAT(stream_of(8).map(pair).element_spec(), expected);
  EXPECT_THAT(Dataset::range(0).map(pair).element_spec(), IsEmpty());
  EXPECT_THAT(stream_of(0).map(pair).element_spec(), IsEmpty());
}

TEST(DatasetTest, Cache) {
  for (const bool is_stream : {false, true}) {
    std::atomic<int> calls = 0;
    const auto count = [&](Element element) -> StatusOr<Element> {
      ++calls;
      return element;
    };
    const Dataset cached = (is_stream ? stream_of(6) : Dataset::range(6)).map(count, 2).cache();
    EXPECT_THAT(read_numbers(cached.repeat(2)), ElementsAre(0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5));
    EXPECT_EQ(calls, 6);
    EXPECT_EQ(read_numbers(cached).size(), 6u);
    EXPECT_EQ(calls, 6);
  }
}

// The slowest element is the first.
TEST(DatasetTest, MapKeepsOrder) {
  std::atomic<int> later = 0;
  const auto slow = [&](Element element) -> StatusOr<Element> {
    if (element[0].view<int64_t>()[0] == 0) {
      while (later < 3) {
      }
    }
    ++later;
    return element;
  };
  EXPECT_THAT(read_numbers(Dataset::range(12).map(slow, 4)),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
}

TEST(DatasetTest, EndIsSticky) {
  for (const bool is_stream : {false, true}) {
    const Dataset dataset = (is_stream ? stream_of(10) : Dataset::range(10)).batch(4);
    TESSERA_ASSERT_OK_AND_ASSIGN(HostIterator iterator, dataset.iterate());
    for (const bool has_batch : {true, true, true, false, false}) {
      TESSERA_ASSERT_OK_AND_ASSIGN(const std::optional<Element> batch, iterator.next());
      EXPECT_EQ(batch.has_value(), has_batch);
    }
  }
}

TEST(DatasetTest, TwoIterators) {
  for (const Dataset& dataset : {Dataset::range(4).batch(2), stream_of(4).cache().batch(2)}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(HostIterator a, dataset.iterate());
    TESSERA_ASSERT_OK_AND_ASSIGN(HostIterator b, dataset.iterate());
    for (const Numbers& expected : {Numbers{0, 1}, Numbers{2, 3}}) {
      for (HostIterator* const iterator : {&a, &b}) {
        TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<Numbers> one, read_batches(*iterator, 1));
        EXPECT_THAT(one, ElementsAre(expected));
      }
    }
  }
}

// Resumes from the state after `step` batches of range(10).batch(4); `rest` are the next batches.
void expect_resumed_after(int step, const std::vector<Numbers>& rest) {
  const Dataset dataset = Dataset::range(10).batch(4);
  TESSERA_ASSERT_OK_AND_ASSIGN(HostIterator iterator, dataset.iterate());
  ASSERT_THAT(read_batches(iterator, step), IsOk());
  const IteratorState state = iterator.state();
  EXPECT_EQ(state.step, step);
  EXPECT_EQ(state.epoch, 0);
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<Numbers> batches, read_batches(dataset, state));
  EXPECT_EQ(batches, rest);
}
TEST(DatasetTest, ResumeAfter1) { expect_resumed_after(1, {{4, 5, 6, 7}, {8, 9}}); }
TEST(DatasetTest, ResumeAfter2) { expect_resumed_after(2, {{8, 9}}); }

TEST(DatasetTest, ResumeShuffled) {
  std::atomic<int> calls = 0;
  const auto count = [&](Element element) -> StatusOr<Element> {
    ++calls;
    return element;
  };
  const Dataset dataset = Dataset::range(12).shuffle(3).map(count).repeat().batch(4);
  TESSERA_ASSERT_OK_AND_ASSIGN(HostIterator iterator, dataset.iterate());
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<Numbers> all, read_batches(iterator, 12));
  TESSERA_ASSERT_OK_AND_ASSIGN(HostIterator again, dataset.iterate());
  ASSERT_THAT(read_batches(again, 7), IsOk());
  const IteratorState state = again.state();
  EXPECT_EQ(state.epoch, 2);
  EXPECT_EQ(state.step, 1);
  calls = 0;
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<Numbers> rest, read_batches(dataset, state, 5));
  EXPECT_EQ(rest, std::vector<Numbers>(all.begin() + 7, all.end()));
  EXPECT_EQ(calls, 20);  // nothing is replayed
}

// A filter over random access continues at its position. A generator is read again up to there.
TEST(DatasetTest, AStreamReadsNothingAgainThatHasAnIndex) {
  std::atomic<int> calls = 0;
  const Dataset dataset = Dataset::range(100)
                              .filter([&](const Element& element) {
                                ++calls;
                                return is_odd(element);
                              })
                              .repeat()
                              .batch(10);
  TESSERA_ASSERT_OK_AND_ASSIGN(HostIterator iterator, dataset.iterate());
  ASSERT_THAT(read_batches(iterator, 12), IsOk());
  const IteratorState state = iterator.state();
  EXPECT_EQ(state.epoch, 2);
  EXPECT_EQ(state.step, 2);
  calls = 0;
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<Numbers> next, read_batches(dataset, state, 1));
  EXPECT_THAT(next, ElementsAre(Numbers{41, 43, 45, 47, 49, 51, 53, 55, 57, 59}));
  EXPECT_LE(calls, 20);
  // Without the positions the epoch is read from its start.
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<Numbers> by_hand,
                               read_batches(dataset, {.epoch = 2, .step = 2}, 1));
  EXPECT_EQ(by_hand, next);
}

TEST(DatasetTest, ResumeOtherDataset) {
  TESSERA_ASSERT_OK_AND_ASSIGN(HostIterator iterator, Dataset::range(10).batch(4).iterate());
  EXPECT_THAT(Dataset::range(10).batch(5).iterate(iterator.state()),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("was made by another data set")));
}

TEST(DatasetTest, AnEndlessRepetitionOfNothingEnds) {
  EXPECT_THAT(read_numbers(Dataset::range(0).repeat()), IsEmpty());
  EXPECT_THAT(read_numbers(stream_of(0).repeat()), IsEmpty());
  EXPECT_THAT(read_numbers(Dataset::range(5).repeat(0)), IsEmpty());
}

TEST(DatasetTest, SlicesAndSourcesWithSeveralTensors) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Dataset dataset, Dataset::from_slices({HostArray::of<float>({0, 1, 2, 3, 4, 5}, {3, 2}),
                                                   HostArray::of<int32_t>({7, 8, 9}, {3})}));
  EXPECT_THAT(dataset.element_spec(),
              ElementsAre(TensorSpec{DType::kFloat32, {2}}, TensorSpec{DType::kInt32, {}}));
  TESSERA_ASSERT_OK_AND_ASSIGN(HostIterator iterator, dataset.batch(2).iterate());
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::optional<Element> batch, iterator.next());
  EXPECT_THAT(batch, Optional(ElementsAre(HostArray::of<float>({0, 1, 2, 3}, {2, 2}),
                                          HostArray::of<int32_t>({7, 8}, {2}))));
}

class OneElementSource : public Source {
 public:
  explicit OneElementSource(Element element) : element_(std::move(element)) {}
  std::vector<TensorSpec> spec() const override { return {{DType::kInt32, {2, -1}}}; }
  std::optional<int64_t> size() const override { return size_; }
  StatusOr<Element> read(int64_t) const override { return element_; }
  std::optional<int64_t> size_ = 1;

 private:
  const Element element_;
};

struct ErrorCase {
  const char* name;
  StatusOr<Dataset> dataset;
  const char* message;
};

// Errors of wrong arguments; each stays in all data sets made from the failed one.
TEST(DatasetTest, RefusesWrongArguments) {
  const HostArray scalar = HostArray::scalar<float>(1);
  const Dataset range = Dataset::range(4);
  auto negative = std::make_shared<OneElementSource>(Element());
  negative->size_ = -2;
  const ErrorCase cases[] = {
      {"negative_range", Dataset::range(-1), "range: n is -1; give 0 or more"},
      {"no_source", Dataset::from_source(nullptr), "from_source: the source is null"},
      {"negative_size", Dataset::from_source(negative), "the source has size -2"},
      {"no_slices", Dataset::from_slices({}), "from_slices: no tensors are given"},
      {"scalar_slices", Dataset::from_slices({scalar}), "tensor 0 is a scalar"},
      {"invalid_slices", Dataset::from_slices({HostArray{DType::kInt8, {3}, {}}}),
       "from_slices: tensor 0: an array i8 [3] needs 3 bytes"},
      {"unequal_slices",
       Dataset::from_slices({HostArray::of<float>({1, 2}, {2}), HostArray::of<float>({1}, {1})}),
       "tensor 0 has 2 elements along dim 0, tensor 1 has 1"},
      {"no_generator", Dataset::generator({}, nullptr), "generator: the function is empty"},
      {"generator_spec",
       Dataset::generator({{DType::kInt8, {-2}}},
                          [](int64_t) -> StatusOr<std::optional<Element>> { return Element(); }),
       "generator: tensor 0 of the spec"},
      {"no_map", range.map(nullptr), "map: the function is empty"},
      {"negative_parallelism", range.map(times_ten, -1), "map: parallelism is -1"},
      {"no_filter", range.filter(nullptr), "filter: the function is empty"},
      {"negative_repeat", range.repeat(-1), "repeat: the number of epochs is -1"},
      {"negative_take", range.take(-1), "take: n is -1"},
      {"negative_skip", range.skip(-1), "skip: n is -1"},
      {"no_shards", range.shard(0, 0), "shard: the number of shards is 0"},
      {"shard_index", range.shard(3, 3), "shard: the index is 3; of 3 shards it is 0 to 2"},
      {"batch_0", range.batch(0), "batch: the size is 0"},
      {"batch_remainder", range.batch(2, static_cast<Remainder>(9)),
       "batch: Remainder(9) is not an enumerator; use kKeep or kDrop"},
      {"after_batch", range.batch(2).repeat(), "repeat comes after batch; batch is the last"},
      {"endless_shuffle", range.repeat().shuffle(1), "shuffle before repeat"},
      {"endless_cache", range.repeat().cache(), "cache before repeat"},
  };
  for (const ErrorCase& row : cases) {
    SCOPED_TRACE(row.name);
    Status status = row.dataset.status();
    if (status.ok()) {
      status = row.dataset->status();
      EXPECT_EQ(row.dataset->map(times_ten).iterate().status(), status);
      EXPECT_THAT(row.dataset->element_spec(), IsEmpty());
      EXPECT_THAT(row.dataset->files(), IsEmpty());
    }
    EXPECT_THAT(status, StatusIs(StatusCode::kInvalidArgument, HasSubstr(row.message)));
  }
}

// The errors of an iterator name the element.
TEST(DatasetTest, NamesTheElementThatFails) {
  const auto fail_at_5 = [](Element element) -> StatusOr<Element> {
    if (element[0].view<int64_t>()[0] == 5) return absl::AbortedError("boom");
    return element;
  };
  const auto raise_at_5 = [](Element element) -> StatusOr<Element> {
    // NOTIDY(banned): a user's function may throw
    if (element[0].view<int64_t>()[0] == 5) throw std::runtime_error("bang");
    return element;
  };
  const auto mistake_at_5 = [](Element element) -> StatusOr<Element> {
    if (element[0].view<int64_t>()[0] == 5) element[0].view<float>()[0] = 1;
    return element;
  };
  const auto keep_5 = [&](const Element& element) -> StatusOr<bool> {
    TESSERA_RETURN_IF_ERROR(fail_at_5(element));
    return true;
  };
  const auto invalid = [](Element element) -> StatusOr<Element> {
    if (element[0].view<int64_t>()[0] == 5) element[0].bytes.resize(7);
    return element;
  };
  struct Case {
    const char* name;
    Dataset dataset;
    StatusCode code;
    const char* message;
  };
  const Dataset range = Dataset::range(8);
  const Case cases[] = {
      {"map", range.map(fail_at_5), StatusCode::kAborted, "element 5 of epoch 0: map: boom"},
      {"parallel_map", range.map(fail_at_5, 3), StatusCode::kAborted,
       "element 5 of epoch 0: map: boom"},
      {"map_of_a_stream", stream_of(8).map(fail_at_5, 2), StatusCode::kAborted,
       "element 5: map: boom"},
      {"filter", range.filter(keep_5), StatusCode::kAborted, "filter: element 5: boom"},
      {"exception", range.map(raise_at_5), StatusCode::kUnknown,
       "element 5 of epoch 0: map: the function raised an exception: bang"},
      {"another_type", range.map(mistake_at_5), StatusCode::kUnknown,
       "element 5 of epoch 0: map: the function raised an exception: an array i64 [] was viewed as "
       "f32; view it as its own dtype"},
      {"invalid_array", range.map(invalid), StatusCode::kInvalidArgument,
       "element 5 of epoch 0: map: tensor 0: an array i64 [] needs 8 bytes, and has 7"},
      {"in_a_repetition", range.skip(3).map(fail_at_5).repeat(2), StatusCode::kAborted,
       "element 2 of epoch 0: map: boom"},
  };
  for (const Case& row : cases) {
    SCOPED_TRACE(row.name);
    for (const int64_t size : {1, 2, 3}) {
      TESSERA_ASSERT_OK_AND_ASSIGN(HostIterator iterator, row.dataset.batch(size).iterate());
      Status status;
      IteratorState before;
      while (status.ok()) {
        before = iterator.state();
        status = iterator.next().status();
      }
      EXPECT_THAT(status, StatusIs(row.code, HasSubstr(row.message)));
      EXPECT_EQ(iterator.next().status(), status);  // The error stays,
      EXPECT_EQ(iterator.state(), before);          // and the state is the failed step's.
    }
  }
}

TEST(DatasetTest, RefusesElementsThatAreNotWhatTheSpecSays) {
  struct Case {
    const char* name;
    Element element;
    const char* message;
  };
  const Case cases[] = {
      {"none", {}, "it has 0 tensors; the spec of its source has 1"},
      {"dtype",
       {HostArray::of<float>({1, 2}, {2, 1})},
       "tensor 0 is f32 [2, 1]; the spec of its source says i32 [2, -1]"},
      {"rank", {HostArray::of<int32_t>({1, 2}, {2})}, "tensor 0 is i32 [2]"},
      {"size", {HostArray::of<int32_t>({1, 2}, {1, 2})}, "tensor 0 is i32 [1, 2]"},
      {"bytes", {HostArray::of<int32_t>({1}, {2, 1})}, "tensor 0: an array i32 [2, 1] needs 8"},
  };
  for (const Case& row : cases) {
    SCOPED_TRACE(row.name);
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const Dataset dataset,
        Dataset::from_source(std::make_shared<OneElementSource>(row.element)));
    TESSERA_ASSERT_OK_AND_ASSIGN(HostIterator iterator, dataset.iterate());
    EXPECT_THAT(iterator.next(),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("element 0 of epoch 0: "), HasSubstr(row.message))));
  }
}

TEST(DatasetTest, BatchesElementsOfOneTypeOnly) {
  const auto grow = [](Element element) -> StatusOr<Element> {
    const int64_t i = element[0].view<int64_t>()[0];
    if (i == 3) return Element{};
    return Element{HostArray::of<uint8_t>(std::vector<uint8_t>(i), {i})};
  };
  TESSERA_ASSERT_OK_AND_ASSIGN(HostIterator shapes, Dataset::range(3).map(grow).batch(2).iterate());
  EXPECT_THAT(shapes.next(), StatusIs(StatusCode::kInvalidArgument,
                                      HasSubstr("tensor 0 is u8 [0] in row 0, and u8 [1] in row 1; "
                                                "map them to one shape")));
  TESSERA_ASSERT_OK_AND_ASSIGN(HostIterator counts,
                               Dataset::range(4).skip(2).map(grow).batch(2).iterate());
  EXPECT_THAT(counts.next(), StatusIs(StatusCode::kInvalidArgument,
                                      HasSubstr("row 0 has 1 tensors, row 1 has 0")));
}

TEST(DatasetTest, RefusesStatesThatItDoesNotMake) {
  struct Case {
    const char* name;
    Dataset dataset;
    IteratorState state;
    const char* message;
  };
  const Case cases[] = {
      {"negative_epoch", Dataset::range(4), {.epoch = -1}, "has a negative epoch or step"},
      {"negative_step", Dataset::range(4), {.step = -1}, "has a negative epoch or step"},
      {"beyond", Dataset::range(4).batch(3), {.step = 3}, "is beyond the end of the data set"},
      {"beyond_64_bits", Dataset::range(4).repeat(), {.epoch = INT64_MAX}, "is beyond the end"},
      {"positions", Dataset::range(4), {.pipelines = {1}}, "the data set is not a stream"},
      {"too_many", stream_of(4), {.pipelines = {1, 2}}, "more pipeline positions"},
      {"too_few", stream_of(4).take(2), {.pipelines = {1}}, "too few pipeline positions"},
      {"negative_position", stream_of(4), {.pipelines = {-1}}, "pipeline position -1"},
  };
  for (const Case& row : cases) {
    SCOPED_TRACE(row.name);
    EXPECT_THAT(row.dataset.iterate(row.state),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr(row.message)));
  }
}

TEST(DatasetTest, AnIteratorThatWasMovedFromSaysSo) {
  TESSERA_ASSERT_OK_AND_ASSIGN(HostIterator iterator, Dataset::range(4).iterate());
  const HostIterator other = std::move(iterator);
  EXPECT_THAT(iterator.next(), StatusIs(StatusCode::kFailedPrecondition, HasSubstr("moved from")));
  EXPECT_EQ(iterator.state(), IteratorState());
}

TEST(DatasetTest, ADataSetThatWasMovedFromCarriesAnError) {
  Dataset dataset = Dataset::range(4);
  const Dataset other = std::move(dataset);
  EXPECT_THAT(other.status(), IsOk());
  EXPECT_THAT(dataset.status(),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("the data set was moved from")));
  EXPECT_EQ(dataset.batch(2).iterate().status(), dataset.status());
  EXPECT_THAT(dataset.element_spec(), IsEmpty());
  EXPECT_EQ(dataset.cardinality(), std::nullopt);
  EXPECT_THAT(dataset.files(), IsEmpty());
}

TEST(DatasetTest, ThreadsEndWithTheIterator) {
  const size_t before = testing::entries_of("/proc/self/task").size();
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(HostIterator iterator,
                                 Dataset::range(100).map(times_ten, 4).iterate());
    ASSERT_THAT(iterator.next(), IsOk());
    EXPECT_EQ(testing::entries_of("/proc/self/task").size(), before + 3);
  }
  // The system removes a thread from its list shortly after join() has returned.
  const absl::Time deadline = steady_now() + absl::Seconds(20);
  while (testing::entries_of("/proc/self/task").size() > before && steady_now() < deadline) {
  }
  EXPECT_EQ(testing::entries_of("/proc/self/task").size(), before);
}

// Iterator states.

TEST(IteratorStateTest, ResumeText) {
  const IteratorState state = {
      .dataset = 0xfedcba9876543210, .epoch = 2, .step = 1, .pipelines = {0, INT64_MAX}};
  const std::string text = state.to_string();
  EXPECT_EQ(text,
            "{dataset=hfedcba9876543210, epoch=2, step=1, pipelines=[0, 9223372036854775807]}");
  TESSERA_ASSERT_OK_AND_ASSIGN(const IteratorState again, IteratorState::parse(text));
  EXPECT_EQ(again, state);
  // A truncated text is not a state.
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_THAT(IteratorState::parse(text.substr(0, size)), StatusIs(StatusCode::kInvalidArgument))
        << size;
  }
}

TEST(IteratorStateTest, SaysWhatIsNoState) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "where \"{\" should"},
      {"{epoch=1}", "\"dataset=\""},
      {"{dataset=h0, epoch=1}", "16 hexadecimal digits"},
      {"{dataset=h000000000000000g, epoch=0, step=0, pipelines=[]}", "16 hexadecimal digits"},
      {"{dataset=h0000000000000000, epoch=-1, step=0, pipelines=[]}", "a number of 63 bits"},
      {"{dataset=h0000000000000000, epoch=0, step=9223372036854775808, pipelines=[]}",
       "a number of 63 bits"},
      {"{dataset=h0000000000000000, epoch=0, step=0, pipelines=[x]}", "a number"},
      {"{dataset=h0000000000000000, epoch=0, step=0, pipelines=[]}]", "the end of the text"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_THAT(IteratorState::parse(text),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr(message)));
  }
}

}  // namespace
}  // namespace tessera::input
