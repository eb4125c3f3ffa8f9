// SPDX-License-Identifier: Apache-2.0
//
// The thread that tells losses: what was lost before the callback was set, the order, and that each
// is told once.
#include "job/coordinator/loss_teller.h"

#include <utility>
#include <vector>

#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/gate.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using testing::IsOk;
using ::testing::Pair;

Status lost(absl::string_view how) { return absl::UnavailableError(how); }

TEST(LossTellerTest, LossesBeforeTheCallbackAreToldWhenItIsSet) {
  LossTeller teller;
  teller.add(2, lost("a"));
  teller.add(1, lost("b"));
  teller.add(2, lost("c"));
  std::vector<std::pair<int, Status>> told;
  teller.set_callback([&](int client, const Status& why) { told.emplace_back(client, why); });
  EXPECT_THAT(told, ElementsAre(Pair(1, lost("b")), Pair(2, lost("a"))));
  EXPECT_TRUE(teller.is_lost(2));
  EXPECT_FALSE(teller.is_lost(0));
}

TEST(LossTellerTest, LaterOnesAreToldInTheirOrderAndOnce) {
  LossTeller teller;
  std::vector<int> told;
  testing::Gate all_told;
  teller.set_callback([&](int client, const Status&) {
    told.push_back(client);
    if (told.size() == 3) all_told.open();
  });
  ASSERT_THAT(teller.start(), IsOk());
  for (const int client : {2, 0, 2, 1}) teller.add(client, lost("a"));
  ASSERT_THAT(all_told.wait(), IsOk());
  teller.stop();
  EXPECT_THAT(told, ElementsAre(2, 0, 1));
}

}  // namespace
}  // namespace tessera
