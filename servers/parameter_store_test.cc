// SPDX-License-Identifier: Apache-2.0
//
// ParameterStore: values do not change after a read, and memory is reused.
#include "servers/parameter_store.h"

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/host_array.h"
#include "base/status.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "servers/push_ledger.h"
#include "tests/support/matchers.h"

namespace tessera::distribute::internal {
namespace {

using ::tessera::testing::IsOk;
using ::tessera::testing::StatusIs;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kVariable = 3;
constexpr int kShard = 1;
constexpr int kNumElements = 10'000;

std::string text_of(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}
std::vector<float> elements_of(const std::string& bytes) {
  const auto* const first = reinterpret_cast<const float*>(bytes.data());
  return std::vector<float>(first, first + bytes.size() / sizeof(float));
}

class ParameterStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::vector<float> zeros(kNumElements);
    ASSERT_THAT(store_.create(kVariable, kShard, "v", HostArray::of<float>(zeros, {kNumElements})),
                IsOk());
  }

  StatusOr<std::shared_ptr<const std::string>> read() const {
    return store_.read(kVariable, kShard);
  }
  // A run of worker 0 with one push, which is committed.
  void push(PushKind kind, float value) {
    std::string bytes = store_.spare_memory(kVariable, kShard);
    bytes.append(text_of(std::vector<float>(kNumElements, value)));
    memory_of_push_ = bytes.data();
    const RunKey run = {.worker = 0, .session = 1, .run = ++num_runs_};
    EXPECT_THAT(
        store_.stage(
            run, 0,
            {.kind = kind, .variable = kVariable, .shard = kShard, .bytes = std::move(bytes)}),
        IsOk());
    EXPECT_THAT(store_.update({.number = num_runs_, .commits = {{run, 1}}}), IsOk());
  }

  ParameterStore store_;
  uint64_t num_runs_ = 0;
  const char* memory_of_push_ = nullptr;
};

TEST_F(ParameterStoreTest, AValueThatIsReadDoesNotChange) {
  std::vector<std::shared_ptr<const std::string>> read_before;
  const std::vector<std::pair<PushKind, float>> pushes = {
      {PushKind::kAdd, 1}, {PushKind::kAdd, 2}, {PushKind::kAssign, 7}, {PushKind::kAdd, 1}};
  for (const auto& [kind, value] : pushes) {
    TESSERA_ASSERT_OK_AND_ASSIGN(std::shared_ptr<const std::string> before, read());
    read_before.push_back(std::move(before));
    push(kind, value);
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<const std::string> last, read());
  read_before.push_back(last);
  const std::vector<float> expected = {0, 1, 3, 7, 8};
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_THAT(elements_of(*read_before[i]), Each(expected[i]));
  }
}

TEST_F(ParameterStoreTest, TheMemoryOfAValueIsUsedAgainWhenItsLastReaderIsDone) {
  TESSERA_ASSERT_OK_AND_ASSIGN(std::shared_ptr<const std::string> reader, read());
  const char* const first = reader->data();
  push(PushKind::kAdd, 1);
  const char* const second = memory_of_push_;
  EXPECT_EQ(store_.spare_memory(kVariable, kShard).capacity(), std::string().capacity());
  reader.reset();
  push(PushKind::kAdd, 1);
  EXPECT_EQ(memory_of_push_, first);
  push(PushKind::kAssign, 5);
  EXPECT_EQ(memory_of_push_, second);
  TESSERA_ASSERT_OK_AND_ASSIGN(reader, read());
  EXPECT_THAT(elements_of(*reader), Each(5));
  // An unknown shard has no memory.
  EXPECT_EQ(store_.spare_memory(kVariable, 7).capacity(), std::string().capacity());
}

TEST_F(ParameterStoreTest, RefusesOtherSizesAndShards) {
  const RunKey run = {.worker = 0, .session = 1, .run = 1};
  EXPECT_THAT(store_.stage(run, 0, {.variable = kVariable, .shard = kShard, .bytes = "abcd"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("a push of 4 bytes to shard 1 of variable 3, which has 40000 "
                                 "bytes")));
  EXPECT_THAT(store_.stage(run, 0, {.variable = kVariable, .shard = 7}),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("shard 7 of variable 3 is not on this parameter server")));
  EXPECT_THAT(store_.read(kVariable, 7), StatusIs(absl::StatusCode::kNotFound));
}

// Readers of a value and the pushes that replace it run at the same time.
TEST_F(ParameterStoreTest, ReadersDuringPushes) {
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([this] {
      float last = 0;
      while (last < 100) {
        const StatusOr<std::shared_ptr<const std::string>> value = read();
        ASSERT_THAT(value, IsOk());
        const std::vector<float> elements = elements_of(**value);
        ASSERT_THAT(elements, Each(elements[0]));
        ASSERT_GE(elements[0], last);
        last = elements[0];
      }
    });
  }
  for (int i = 0; i < 100; ++i) push(PushKind::kAdd, 1);
  for (std::thread& reader : readers) reader.join();
}

}  // namespace
}  // namespace tessera::distribute::internal
