// SPDX-License-Identifier: Apache-2.0
//
// Errands run in their order on one thread of their own, and end when they are told to.
#include "transport/errands.h"

#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/gate.h"
#include "tests/support/matchers.h"

namespace tessera::transport {
namespace {

using ::testing::ElementsAre;
using testing::Gate;
using testing::IsOk;

TEST(ErrandsTest, RunInTheirOrderOnAThreadOfTheirOwn) {
  Errands errands("a test");
  Gate may_begin;
  Gate ended;
  std::vector<int> order;
  std::vector<std::thread::id> threads;
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(errands.post([&, i] {
      if (i == 0) {
        EXPECT_THAT(may_begin.wait(), IsOk());
      }
      order.push_back(i);
      threads.push_back(std::this_thread::get_id());
      ended.open();
    }),
                IsOk());
  }
  // None of the calls has waited for the first errand.
  may_begin.open();
  for (int i = 0; i < 3; ++i) ASSERT_THAT(ended.wait(), IsOk());
  errands.stop();
  EXPECT_THAT(order, ElementsAre(0, 1, 2));
  EXPECT_EQ(threads[0], threads[2]);
  EXPECT_NE(threads[0], std::this_thread::get_id());
}

TEST(ErrandsTest, AnErrandThatPausesEndsWithThem) {
  Errands errands("a test");
  Gate began;
  bool goes_on = true;
  bool next_began = false;
  EXPECT_THAT(errands.post([&] {
    began.open();
    goes_on = errands.pause(absl::Hours(1));
  }),
              IsOk());
  EXPECT_THAT(errands.post([&] { next_began = true; }), IsOk());
  ASSERT_THAT(began.wait(), IsOk());
  errands.stop();
  EXPECT_FALSE(goes_on);
  EXPECT_FALSE(next_began);
  EXPECT_THAT(errands.post([&] { next_began = true; }), IsOk());
  EXPECT_FALSE(next_began);
}

}  // namespace
}  // namespace tessera::transport
