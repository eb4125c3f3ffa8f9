// SPDX-License-Identifier: Apache-2.0
//
// CoordinatorTest: clients of a job over real gRPC, as threads of the test; client 0 hosts the
// service. With TESSERA_TEST_RELAY=1 in the environment the others reach it through a relay.
//
//   const auto clients = connect_all(3);
//   Losses losses(*clients[0]);
//   EXPECT_THAT(leave_all(clients), Each(IsOk()));
#ifndef TESSERA_TESTS_SUPPORT_COORDINATOR_CLIENTS_H_
#define TESSERA_TESTS_SUPPORT_COORDINATOR_CLIENTS_H_

#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/coordinator/connect_coordinator.h"
#include "job/coordinator/coordinator.h"
#include "job/coordinator/coordinator_server.h"
#include "job/environment/host.h"
#include "job/environment/port.h"
#include "tests/support/deadline.h"
#include "tests/support/matchers.h"

namespace tessera::testing {

using Connection = StatusOr<std::unique_ptr<Coordinator>>;

inline absl::Time soon() { return steady_now() + absl::Seconds(30); }

// The losses that are reported to one client.
class Losses {
 public:
  explicit Losses(Coordinator& coordinator) {
    coordinator.set_lost_callback([this](int client, const Status& reason) {
      std::lock_guard<std::mutex> lock(mutex_);
      heard_.emplace_back(client, reason);
      changed_.notify_all();
    });
  }

  // All so far, once there is one; empty if there is none in time.
  std::vector<std::pair<int, Status>> first() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_until(lock, to_chrono_steady(soon()), [this] { return !heard_.empty(); });
    return heard_;
  }
  std::vector<std::pair<int, Status>> so_far() {
    std::lock_guard<std::mutex> lock(mutex_);
    return heard_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<int, Status>> heard_;
};

class CoordinatorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TESSERA_ASSERT_OK_AND_ASSIGN(ReservedPort port, ReservedPort::create());
    port_ = std::make_unique<ReservedPort>(std::move(port));
    if (std::getenv("TESSERA_TEST_RELAY") == nullptr) return;
    TESSERA_ASSERT_OK_AND_ASSIGN(
        relay_,
        CoordinatorServer::start(
            {.address = "127.0.0.1:0", .token = "secret", .upstream = options(0, 1).address}));
  }

  CoordinatorOptions options(int client_id, int num_clients) const {
    CoordinatorOptions result;
    result.address = absl::StrCat("127.0.0.1:", port_->port());
    if (relay_ != nullptr && client_id != 0) {
      result.relay = absl::StrCat("127.0.0.1:", relay_->port());
    }
    result.token = "secret";
    result.num_clients = num_clients;
    result.self = describe_this_process();
    result.self.client_id = client_id;
    result.self.num_local_devices = client_id + 1;
    result.self.device_type = "cpu";
    return result;
  }

  static std::vector<Connection> connect(const std::vector<CoordinatorOptions>& options) {
    std::vector<Connection> result(options.size());
    in_parallel(options.size(), [&](size_t i) { result[i] = connect_coordinator(options[i]); });
    return result;
  }
  // All clients of a job, connected.
  std::vector<std::unique_ptr<Coordinator>> connect_all(
      int num_clients, const std::function<void(CoordinatorOptions&)>& change = nullptr) {
    std::vector<CoordinatorOptions> all;
    for (int i = 0; i < num_clients; ++i) {
      all.push_back(options(i, num_clients));
      if (change) change(all.back());
    }
    std::vector<std::unique_ptr<Coordinator>> clients;
    for (Connection& connection : connect(all)) {
      EXPECT_THAT(connection, IsOk());
      if (connection.ok()) clients.push_back(*std::move(connection));
    }
    return clients;
  }

  static void in_parallel(size_t count, const std::function<void(size_t)>& body) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
    for (std::thread& thread : threads) thread.join();
  }
  // The Status of each client from one call that all make.
  template <class Clients>
  static std::vector<Status> on_all(const Clients& clients,
                                    const std::function<Status(Coordinator&)>& body) {
    std::vector<Status> result(clients.size());
    in_parallel(clients.size(), [&](size_t i) { result[i] = body(*clients[i]); });
    return result;
  }
  template <class Clients>
  static std::vector<Status> leave_all(const Clients& clients) {
    return on_all(clients, [](Coordinator& client) { return client.leave(soon()); });
  }

  std::unique_ptr<ReservedPort> port_;
  std::unique_ptr<CoordinatorServer> relay_;  // or none
  TestDeadline deadline_{absl::Seconds(100),
                         ::testing::UnitTest::GetInstance()->current_test_info()->name()};
};

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_COORDINATOR_CLIENTS_H_
