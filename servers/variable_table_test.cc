// SPDX-License-Identifier: Apache-2.0
//
// VariableTable: places in turn, names, and shards too large for a message.
#include "servers/variable_table.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "servers/tensor_message.h"
#include "servers/variable_place.h"
#include "tests/support/matchers.h"

namespace tessera::distribute::internal {
namespace {

using ::tessera::testing::IsOk;
using ::tessera::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

VariablePlace place_of(std::string name, std::vector<int64_t> rows) {
  int64_t size = 0;
  for (const int64_t shard : rows) size += shard;
  return {
      .name = std::move(name), .dtype = DType::kUint8, .shape = {size}, .rows = std::move(rows)};
}

TEST(VariableTableTest, ShardsOfAllVariablesGoToTheServersInTurn) {
  VariableTable table(3);
  VariablePlace a = place_of("a", {1, 1}), b = place_of("b", {2}), c = place_of("c", {1, 1, 1, 1});
  for (VariablePlace* const place : {&a, &b, &c}) ASSERT_THAT(table.add(place), IsOk());
  EXPECT_THAT(a.ps, ElementsAre(0, 1));
  EXPECT_THAT(b.ps, ElementsAre(2));
  EXPECT_THAT(c.ps, ElementsAre(0, 1, 2, 0));
  EXPECT_THAT((std::vector<int>{a.number, b.number, c.number}), ElementsAre(0, 1, 2));
  EXPECT_EQ(table.names_on(0), "\"a\", \"c\"");
  EXPECT_EQ(table.names_on(1), "\"a\", \"c\"");
  EXPECT_EQ(table.names_on(2), "\"b\", \"c\"");
  EXPECT_EQ(VariableTable(1).names_on(0), "");
}

TEST(VariableTableTest, WhatIsRefusedIsNotAdded) {
  VariableTable table(2);
  VariablePlace large = place_of("large", {1, kMostMessageBytes + 1});
  EXPECT_THAT(table.add(&large),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("variable \"large\" has a shard of 1 GiB; the most is 1 GiB, use "
                                 "a partitioner such as max_size")));
  VariablePlace most = place_of("large", {1, kMostMessageBytes});
  EXPECT_THAT(table.add(&most), IsOk());
  EXPECT_THAT(most.ps, ElementsAre(0, 1));
  VariablePlace again = place_of("large", {1});
  EXPECT_THAT(table.add(&again),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("variable \"large\" is there; give each a name of its own")));
  VariablePlace next = place_of("next", {1});
  EXPECT_THAT(table.add(&next), IsOk());
  EXPECT_THAT(next.ps, ElementsAre(0));
  EXPECT_EQ(next.number, 1);
}

}  // namespace
}  // namespace tessera::distribute::internal
