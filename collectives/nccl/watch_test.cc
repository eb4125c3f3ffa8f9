// SPDX-License-Identifier: Apache-2.0
//
// A client while the coordinator, or a client that settles a verdict, does not answer: on the fakes
// of CUDA and NCCL, with communicators that no group has made.
#include "collectives/nccl/watch.h"

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/host/op_record.h"
#include "collectives/host/rendezvous.h"
#include "collectives/label.h"
#include "collectives/nccl/communicator.h"
#include "collectives/nccl/generations.h"
#include "collectives/nccl/other_hosts.h"
#include "collectives/nccl/testing/three_clients.h"
#include "collectives/span/network.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/deadline.h"
#include "tests/support/matchers.h"
#include "transport/engine.h"
#include "transport/ucx/ucx_engine.h"

namespace tessera::nccl {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

class WatchTest : public ThreeClientsTest {
 protected:
  shm::HostLink& link() { return *job_->client(0).link; }
  Watch& watch() { return *job_->client(0).watch; }
  Generations open(const std::vector<shm::GroupMember>& members,
                   std::shared_ptr<OtherHosts> others) {
    StatusOr<Generations> opened = Generations::open(link(), members, std::move(others));
    EXPECT_THAT(opened.status(), IsOk());
    return *std::move(opened);
  }
  // Generation 1 of a group of device 0 alone, as seen by its member.
  Generations meet(std::shared_ptr<OtherHosts> others) {
    Generations generations = open({{0, 0, 0}}, std::move(others));
    EXPECT_THAT(
        generations
            .meet(
                Label("sum"), /*member=*/0, /*generation=*/1,
                [&] { return watch().api().get_unique_id(); }, steady_now() + absl::Seconds(30))
            .status(),
        IsOk());
    return generations;
  }
  std::shared_ptr<Communicator> communicator(const Generations& generations) {
    return std::make_shared<Communicator>(
        watch().api(), watch().lane(job_->client(0).devices[0].get()), generations,
        /*generation=*/1);
  }
  Status begin(const std::shared_ptr<Communicator>& communicator, const std::string& label,
               absl::Time deadline) {
    watch().add(communicator);
    Watch::Flight flight;
    flight.communicator = communicator;
    flight.label = label;
    flight.deadline = deadline;
    return watch().begin(std::move(flight)).status();
  }
};

// Finding 1 of the watch: it asked the coordinator under its mutex, and all GPUs of the client
// stood still.
TEST_F(WatchTest, ACoordinatorThatDoesNotAnswerDelaysNoOtherOperation) {
  start({.watch = {.verdict_limit = absl::Seconds(60)}});
  TESSERA_ASSERT_OK_AND_ASSIGN(
      std::unique_ptr<transport::Engine> engine,
      ucx::make_ucx_engine(job_->job().coordinator(0), {.interface = "lo", .wait_policy = {}}));
  const auto network =
      std::make_shared<span::Network>(std::move(engine), job_->job().coordinator(0));
  const std::vector<shm::GroupMember> members = {{0, 0, 0}};
  const Generations asks = meet(std::make_shared<OtherHosts>(network, members));
  const Generations alone = meet(nullptr);
  const std::shared_ptr<Communicator> slow = communicator(asks);
  const std::shared_ptr<Communicator> quick = communicator(alone);

  job_->job().set_answering(false);
  const int num_calls = job_->job().num_calls();
  ASSERT_THAT(begin(slow, "slow", steady_now()), IsOk());
  while (job_->job().num_calls() == num_calls) std::this_thread::yield();
  // The coordinator is asked for the verdict of `slow`.
  ASSERT_THAT(begin(quick, "quick", absl::InfiniteFuture()), IsOk());
  EXPECT_THAT(watch().check(), IsOk());
  EXPECT_FALSE(slow->is_failed());
  EXPECT_FALSE(quick->is_failed());

  // All that is under way fails with it, once the verdict is known.
  job_->job().set_answering(true);
  while (!quick->is_failed()) std::this_thread::yield();
  EXPECT_THAT(slow->verdict(), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                        HasSubstr("was not through with slow in time")));
  EXPECT_EQ(quick->verdict(), slow->verdict());
  // Until the watch has ended them.
  while (slow.use_count() > 1 || quick.use_count() > 1) std::this_thread::yield();
  network->engine->stop();
}

// A verdict that the coordinator does not confirm is this host's.
TEST_F(WatchTest, ACoordinatorThatDoesNotAnswerByTheLimitDecidesNothing) {
  start();
  TESSERA_ASSERT_OK_AND_ASSIGN(
      std::unique_ptr<transport::Engine> engine,
      ucx::make_ucx_engine(job_->job().coordinator(0), {.interface = "lo", .wait_policy = {}}));
  const auto network =
      std::make_shared<span::Network>(std::move(engine), job_->job().coordinator(0));
  const std::vector<shm::GroupMember> members = {{0, 0, 0}, {1, 1, 0}};
  Generations generations = open(members, std::make_shared<OtherHosts>(network, members));
  job_->job().set_answering(false);
  const testing::TestDeadline deadline(absl::Seconds(10), "the limit of the coordinator");
  const Status error = absl::DeadlineExceededError("late");
  EXPECT_EQ(generations.fail(1, error, steady_now() + OtherHosts::kVerdictLimit), error);
  network->engine->stop();
}

// The functions called under locks when a client is lost do not wait for another client that is
// stopped while it settles a verdict.
TEST_F(WatchTest, ALossDoesNotWaitForASettlerThatIsStopped) {
  start();
  const testing::TestDeadline deadline(absl::Seconds(10), "less than the time limit of a settler");
  const std::vector<shm::GroupMember> members = {{0, 0, 0}, {1, 1, 0}};
  Generations generations = open(members, nullptr);
  // The block of those generations (generations.cc has both numbers).
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const host::Rendezvous records,
      host::Rendezvous::open(link(), members, /*num_records=*/4, /*salt=*/2));
  host::OpRecord& record = reinterpret_cast<host::OpRecord*>(&records.records().entry(1, 0))[-1];
  record.state = host::State{.seq = 1, .phase = host::Phase::kSettling, .settler = 2}.pack();
  generations.lose(1, absl::UnavailableError("client 2 is lost"));
  generations.end(1, absl::UnavailableError("a link broke"), steady_now());
  EXPECT_TRUE(generations.is_failed(1));
}

}  // namespace
}  // namespace tessera::nccl
