// SPDX-License-Identifier: Apache-2.0
//
// Memory that others may still write is not reused.
#include "collectives/host/quarantine.h"

#include <cstdint>
#include <memory>

#include "gtest/gtest.h"

namespace tessera::host {
namespace {

using Until = Quarantine::Until;

TEST(QuarantineTest, ARunIsKeptUntilTheOthersAreDoneWithIt) {
  Quarantine quarantine;
  auto first = std::make_shared<int>(1);
  auto second = std::make_shared<int>(2);
  quarantine.keep(first, 1, Until::kOthersAreDone);
  quarantine.keep(second, 2, Until::kOthersAreDone);
  quarantine.reap([](uint32_t) { return false; });
  EXPECT_EQ(first.use_count(), 2);
  EXPECT_EQ(second.use_count(), 2);
  quarantine.reap([](uint32_t seq) { return seq == 1; });
  EXPECT_EQ(first.use_count(), 1);
  EXPECT_EQ(second.use_count(), 2);
  quarantine.reap([](uint32_t) { return true; });
  EXPECT_EQ(second.use_count(), 1);
}

TEST(QuarantineTest, WhatADeviceMayStillUseIsKeptUntilShutdown) {
  Quarantine quarantine;
  auto run = std::make_shared<int>(1);
  quarantine.keep(run, 1, Until::kShutdown);
  quarantine.reap([](uint32_t) { return true; });
  EXPECT_EQ(run.use_count(), 2);
  quarantine.clear();
  EXPECT_EQ(run.use_count(), 1);
}

// The destructor of a run may call its group.
TEST(QuarantineTest, ARunIsDestroyedWithoutTheLock) {
  Quarantine quarantine;
  auto other = std::make_shared<int>(1);
  const auto keep_other = [&](int* run) {
    quarantine.keep(other, 2, Until::kOthersAreDone);
    delete run;
  };
  quarantine.keep(std::shared_ptr<int>(new int(0), keep_other), 1, Until::kOthersAreDone);
  quarantine.reap([](uint32_t seq) { return seq == 1; });
  EXPECT_EQ(other.use_count(), 2);
  quarantine.reap([](uint32_t seq) { return seq == 2; });
  EXPECT_EQ(other.use_count(), 1);
}

}  // namespace
}  // namespace tessera::host
