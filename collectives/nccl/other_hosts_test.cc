// SPDX-License-Identifier: Apache-2.0
//
// The messages of two hosts about NCCL: one id, one verdict, one answer on memory. Clients 0 and 1
// are on one host, client 2 on another; they are threads, with UCX between them.
#include "collectives/nccl/other_hosts.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/nccl/api.h"
#include "collectives/span/network.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/coordinator/coordinator.h"
#include "shm/group_table.h"
#include "tests/support/coordinator/fake_coordinator.h"
#include "tests/support/forked.h"
#include "tests/support/matchers.h"
#include "transport/engine.h"
#include "transport/ucx/ucx_engine.h"

namespace tessera::nccl {
namespace {

using ::testing::AllOf;
using testing::FakeJob;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

constexpr int kClients = 3;
constexpr uint32_t kGeneration = 5;

absl::Time soon() { return steady_now() + absl::Seconds(30); }

class OtherHostsTest : public ::testing::Test {
 protected:
  OtherHostsTest() : job_(std::vector<int>(kClients, 1)) { job_.set_host_id(2, "host-b"); }
  ~OtherHostsTest() override {
    for (const auto& network : networks_) network->engine->stop();
  }

  void SetUp() override {
    on_all([this](int client) -> Status {
      Coordinator& coordinator = job_.coordinator(client);
      TESSERA_ASSIGN_OR_RETURN(
          std::unique_ptr<transport::Engine> engine,
          ucx::make_ucx_engine(coordinator, {.interface = "lo", .wait_policy = {}}));
      networks_[client] = std::make_shared<span::Network>(std::move(engine), coordinator);
      const std::vector<int> far = client == 2 ? std::vector<int>{0, 1} : std::vector<int>{2};
      TESSERA_RETURN_IF_ERROR(networks_[client]->engine->connect(far, soon()));
      for (const int other : far) networks_[client]->letters.open(other);
      hosts_[client] = std::make_unique<OtherHosts>(networks_[client], members_);
      return absl::OkStatus();
    });
  }

  // Runs `body` as every client at the same time, each on a thread.
  static void on_all(const std::function<Status(int client)>& body) {
    std::vector<Status> statuses(kClients);
    std::vector<std::thread> threads;
    for (int client = 0; client < kClients; ++client) {
      threads.emplace_back([&, client] { statuses[client] = body(client); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Status& status : statuses) ASSERT_THAT(status, IsOk());
  }

  const std::vector<shm::GroupMember> members_ = {{0, 0, 0}, {1, 1, 0}, {2, 2, 0}};
  FakeJob job_;
  std::vector<std::shared_ptr<span::Network>> networks_{kClients};
  std::vector<std::unique_ptr<OtherHosts>> hosts_{kClients};
};

TEST_F(OtherHostsTest, TheFirstMembersClientMakesTheIdOfAll) {
  on_all([this](int client) -> Status {
    const auto make = [client]() -> StatusOr<UniqueId> {
      UniqueId id = {};
      id[127] = static_cast<std::byte>(client + 1);
      return id;
    };
    TESSERA_ASSIGN_OR_RETURN(const UniqueId id,
                             hosts_[client]->share_id(kGeneration, make, soon()));
    TESSERA_REQUIRE(id[127] == std::byte{1} && id[0] == std::byte{0});
    return absl::OkStatus();
  });
}

TEST_F(OtherHostsTest, AnIdDoesNotComeFromALostClient) {
  job_.declare_lost(0, absl::UnavailableError("client 0 is lost"));
  const auto make = []() -> StatusOr<UniqueId> { return absl::InternalError("not asked"); };
  EXPECT_THAT(hosts_[2]->share_id(kGeneration, make, soon()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("client 0")));
}

TEST_F(OtherHostsTest, WhatCannotBeReadIsNamed) {
  const auto write = [&](int client, absl::string_view what, absl::string_view text) {
    const std::string series =
        absl::StrCat("NCCL ", what, " of ", absl::Hex(hosts_[client]->name()));
    ASSERT_THAT(job_.coordinator(client).propose(series, kGeneration, text, soon()), IsOk());
  };
  write(0, "id", "00ff");
  const auto make = []() -> StatusOr<UniqueId> { return absl::InternalError("not asked"); };
  EXPECT_THAT(
      hosts_[2]->share_id(kGeneration, make, soon()),
      StatusIs(absl::StatusCode::kInternal,
               AllOf(HasSubstr("the id of a communicator of NCCL that client 0 ("),
                     HasSubstr(" gave has 2 bytes, not 128; build all programs of a job"))));
  write(0, "memory on the host of client 0", "\x1b[2J");
  EXPECT_THAT(
      hosts_[2]->first_error(kGeneration, absl::OkStatus(), soon()),
      StatusIs(absl::StatusCode::kInternal,
               HasSubstr("an error that another client has reported cannot be read: \"\\x1b[2J\"; "
                         "build all programs of a job from one Tessera; where they are, report "
                         "this as a bug of Tessera")));
}

TEST_F(OtherHostsTest, TheFirstVerdictStandsAndIsTold) {
  const Status first = absl::UnavailableError("a link broke");
  std::promise<std::pair<uint32_t, Status>> told;
  hosts_[2]->start_reading([&](uint32_t generation, const Status& verdict) {
    told.set_value({generation, verdict});
  });
  EXPECT_EQ(hosts_[0]->propose(kGeneration, first, soon()), first);
  std::future<std::pair<uint32_t, Status>> future = told.get_future();
  ASSERT_EQ(future.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_EQ(future.get(), std::make_pair(kGeneration, first));
  EXPECT_EQ(hosts_[2]->propose(kGeneration, absl::AbortedError("later"), soon()), first);
}

TEST_F(OtherHostsTest, TheErrorOfOneHostIsThatOfAll) {
  const Status missing = absl::ResourceExhaustedError("no memory for packing");
  on_all([&](int client) -> Status {
    const Status own = client == 2 ? missing : absl::OkStatus();
    TESSERA_REQUIRE(hosts_[client]->first_error(/*seq=*/1, own, soon()) == missing);
    return hosts_[client]->first_error(/*seq=*/2, absl::OkStatus(), soon());
  });
}

}  // namespace
}  // namespace tessera::nccl
