// SPDX-License-Identifier: Apache-2.0
//
// Fixture of tests with three clients of one host, in one process.
#ifndef TESSERA_SHM_TESTING_THREE_CLIENTS_H_
#define TESSERA_SHM_TESTING_THREE_CLIENTS_H_

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "device/cpu/arena.h"
#include "gtest/gtest.h"
#include "shm/host_link.h"
#include "tests/support/coordinator/fake_coordinator.h"
#include "tests/support/deadline.h"

namespace tessera::shm {

// Three clients of one device each.
class ThreeClientsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<std::thread> threads;
    for (int c = 0; c < 3; ++c) {
      threads.emplace_back([this, c] {
        auto link = HostLink::create(job_.coordinator(c), ArenaPool::create(4096),
                                     steady_now() + absl::Seconds(10));
        if (link.ok()) links_[c] = *std::move(link);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& link : links_) ASSERT_NE(link, nullptr);
  }
  testing::TestDeadline deadline_{absl::Seconds(60), "three clients"};
  testing::FakeJob job_{std::vector<int>(3, 1)};
  std::unique_ptr<HostLink> links_[3];
};

}  // namespace tessera::shm

#endif  // TESSERA_SHM_TESTING_THREE_CLIENTS_H_
