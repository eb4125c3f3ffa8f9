// SPDX-License-Identifier: Apache-2.0
//
// Reports of a data set's nodes while their functions run. Each function asks from inside its call.
#include "input/running_calls.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/host_array.h"
#include "base/status.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "input/batch_reader.h"
#include "input/dataset.h"
#include "input/node.h"
#include "input/source.h"
#include "tests/support/matchers.h"

namespace tessera::input {
namespace {

using internal::DatasetAccess;
using internal::RunningCalls;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::IsOk;

// The data set that is read, and the reports that its functions see.
struct Observed {
  std::optional<Dataset> dataset = {};
  std::vector<std::string> texts = {};

  void look() {
    if (dataset.has_value()) DatasetAccess::rep(*dataset).node->describe_calls(&texts);
  }
};

class Numbers : public Source {
 public:
  Numbers(Observed& observed, std::optional<int64_t> size) : observed_(observed), size_(size) {}
  std::vector<TensorSpec> spec() const override { return {{DType::kInt64, {}}}; }
  std::optional<int64_t> size() const override { return size_; }
  StatusOr<Element> read(int64_t index) const override {
    if (index == 3) return absl::OutOfRangeError("the end");
    observed_.look();
    return Element{HostArray::scalar(index)};
  }

 private:
  Observed& observed_;
  const std::optional<int64_t> size_;
};

bool is_odd(const Element& element) { return element[0].view<int64_t>()[0] % 2 == 1; }

TEST(RunningCallsTest, EachFunctionIsNamedWithItsElement) {
  for (const std::optional<int64_t> size : {std::optional<int64_t>(3), std::optional<int64_t>()}) {
    Observed observed;
    TESSERA_ASSERT_OK_AND_ASSIGN(const Dataset source,
                                 Dataset::from_source(std::make_shared<Numbers>(observed, size)));
    const Dataset dataset = source
                                .filter([&](const Element& element) -> StatusOr<bool> {
                                  observed.look();
                                  return is_odd(element);
                                })
                                .map([&](Element element) -> StatusOr<Element> {
                                  observed.look();
                                  return element;
                                });
    TESSERA_ASSERT_OK_AND_ASSIGN(HostIterator iterator, dataset.iterate());
    observed.dataset = dataset;
    EXPECT_THAT(iterator.next(), IsOk());
    EXPECT_THAT(observed.texts, ElementsAre("the source is at element 0", "filter is at element 0",
                                            "the source is at element 1", "filter is at element 1",
                                            "map is at element 0"));
    observed.texts.clear();
    observed.look();
    EXPECT_THAT(observed.texts, IsEmpty());
  }
}

// With random access, and below other operations, a report names the element that an error would
// name.
TEST(RunningCallsTest, AnElementOfRandomAccess) {
  Observed observed;
  const Dataset dataset = Dataset::range(10)
                              .map([&](Element element) -> StatusOr<Element> {
                                observed.look();
                                return element;
                              })
                              .skip(6)
                              .repeat()
                              .batch(2);
  TESSERA_ASSERT_OK_AND_ASSIGN(HostIterator iterator, dataset.iterate());
  observed.dataset = dataset;
  EXPECT_THAT(iterator.next(), IsOk());
  EXPECT_THAT(observed.texts, ElementsAre("map is at element 6", "map is at element 7"));
}

TEST(RunningCallsTest, TheCallsOfSeveralThreads) {
  RunningCalls calls;
  std::vector<std::string> texts;
  const RunningCalls::Call first(calls, 12);
  std::thread([&] {
    const RunningCalls::Call second(calls, 13);
    calls.describe("map", &texts);
  }).join();
  EXPECT_THAT(texts, ElementsAre("map is at elements 12, 13"));
}

}  // namespace
}  // namespace tessera::input
