// SPDX-License-Identifier: Apache-2.0
//
// TESSERA_INTERFACE reaches NCCL, and the user's settings for NCCL stay.
#include "collectives/nccl/interface.h"

#include <cstdlib>
#include <string>

#include "absl/time/time.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/forked.h"
#include "tests/support/matchers.h"

namespace tessera::nccl {
namespace {

using testing::IsOk;
using testing::run_isolated;

// In a forked child: the environment of the test stays as it is. Null: not set.
void expect_choice(const char* tessera, const char* nccl, const std::string& chosen) {
  EXPECT_THAT(run_isolated(absl::Seconds(60),
                           [&]() -> Status {
                             if (tessera != nullptr) setenv("TESSERA_INTERFACE", tessera, 1);
                             if (nccl != nullptr) setenv("NCCL_SOCKET_IFNAME", nccl, 1);
                             choose_interface();
                             const char* const set = std::getenv("NCCL_SOCKET_IFNAME");
                             TESSERA_REQUIRE((set == nullptr ? "" : set) == chosen,
                                             set == nullptr ? "not set" : set);
                             return absl::OkStatus();
                           }),
              IsOk());
}

TEST(InterfaceTest, TheNameIsExact) { expect_choice("eth1", nullptr, "=eth1"); }

TEST(InterfaceTest, ANetworkIsReplacedByItsInterface) {
  expect_choice("127.0.0.0/8", nullptr, "=lo");
}

TEST(InterfaceTest, WhatTheUserSetForNcclStays) { expect_choice("eth1", "^docker", "^docker"); }

TEST(InterfaceTest, WithoutANameNcclChooses) {
  expect_choice(nullptr, nullptr, "");
  expect_choice("", nullptr, "");
}

}  // namespace
}  // namespace tessera::nccl
