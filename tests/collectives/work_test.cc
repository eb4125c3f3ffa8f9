// SPDX-License-Identifier: Apache-2.0
//
// Work by itself: a program that polls it makes progress, and it may outlive its client.
#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/group.h"
#include "dtensor/client.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/clients.h"
#include "tests/support/forked.h"
#include "tests/support/gate.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

constexpr absl::Duration kLimit = absl::Seconds(60);

// ---- Polling.

// Four clients on one core that do nothing but poll. A thread that polled without yielding would
// poll for its whole time slice each time that another thread yields to it. The cost of an
// operation is counted in polls, so other load on the machine does not matter.
TEST(PollingTest, ClientsThatPollMakeProgress) {
  constexpr int kOps = 200;
  constexpr int64_t kPollsPerOp = 20'000;
  cpu_set_t before;
  sched_getaffinity(0, sizeof before, &before);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) < 1; ++cpu) {
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  }
  sched_setaffinity(0, sizeof one, &one);
  const auto body = [](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1, 2, 3}));
    TESSERA_RETURN_IF_ERROR(group.barrier().wait(kLimit));
    std::vector<float> values(3, 1.0f);
    int64_t num_polls = 0;
    for (int i = 0; i < kOps; ++i) {
      std::fill(values.begin(), values.end(), 1.0f);
      const Work work = group.all_reduce<float>(values, absl::MakeSpan(values), ReduceOp::kSum);
      while (!work.done()) {
        if (++num_polls > kOps * kPollsPerOp) {
          return absl::InternalError(
              absl::StrCat(num_polls, " polls, and only ", i, " of ", kOps, " operations"));
        }
      }
      TESSERA_REQUIRE(values == std::vector<float>(3, 4.0f));
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(run_clients({.setting = Setting::kProcesses, .num_clients = 4}, body), IsOk());
  sched_setaffinity(0, sizeof before, &before);
}

// ---- A Work that outlives its client. Issue 15, R14.

Status expect_cancelled(const Work& work) {
  TESSERA_RETURN_IF_ERROR(
      expect_error(work.await(), absl::StatusCode::kCancelled, {"is shutting down"}));
  TESSERA_REQUIRE(work.done());
  return expect_error(work.wait(absl::ZeroDuration()), absl::StatusCode::kCancelled);
}

TEST(OutlivingWorkTest, MessagesOfOneClientAreCancelled) {
  EXPECT_THAT(
      run_isolated(kLimit,
                   []() -> Status {
                     const std::vector<float> data(8, 1.0f);
                     std::vector<float> out(8);
                     std::vector<Work> works;
                     {
                       TESSERA_ASSIGN_OR_RETURN(const Client client,
                                                Client::connect({.num_local_devices = 3}));
                       TESSERA_ASSIGN_OR_RETURN(const Group from, client.group({0, 1, 2}, 0));
                       TESSERA_ASSIGN_OR_RETURN(const Group to, client.group({0, 1, 2}, 1));
                       // More than there are records for.
                       for (int i = 0; i < 40; ++i) works.push_back(from.send<float>(data, 1));
                       works.push_back(to.recv<float>(absl::MakeSpan(out), 2));
                     }
                     for (const Work& work : works) TESSERA_RETURN_IF_ERROR(expect_cancelled(work));
                     return absl::OkStatus();
                   }),
      IsOk());
}

TEST(OutlivingWorkTest, AMessageThatWasReceivedIsOk) {
  EXPECT_THAT(
      run_isolated(kLimit,
                   []() -> Status {
                     const std::vector<float> data(8, 1.0f);
                     std::vector<float> out(8);
                     std::vector<Work> sent;
                     {
                       TESSERA_ASSIGN_OR_RETURN(Client client,
                                                Client::connect({.num_local_devices = 2}));
                       TESSERA_ASSIGN_OR_RETURN(const Group from, client.group({0, 1}, 0));
                       TESSERA_ASSIGN_OR_RETURN(const Group to, client.group({0, 1}, 1));
                       sent.push_back(from.send<float>(data, 1));
                       TESSERA_RETURN_IF_ERROR(to.recv<float>(absl::MakeSpan(out), 0).await());
                       TESSERA_RETURN_IF_ERROR(client.shutdown());
                     }
                     return sent[0].await();
                   }),
      IsOk());
}

class OutlivingWorkBetweenClientsTest : public ::testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(Settings, OutlivingWorkBetweenClientsTest,
                         ::testing::Values(Setting::kThreads, Setting::kProcesses));

// Client 1 never takes part. Client 0 waits in the collective.
TEST_P(OutlivingWorkBetweenClientsTest, OperationsBetweenClientsAreCancelled) {
  Gate is_over;
  const auto body = [&](Client& client) -> Status {
    if (client.client_id() == 1) return is_over.wait();
    const std::vector<float> data(8, 1.0f);
    std::vector<float> out(8);
    std::vector<Work> works;
    {
      const Client last = std::move(client);
      TESSERA_ASSIGN_OR_RETURN(const Group group, last.group({0, 1}));
      works.push_back(group.send<float>(data, 1));
      works.push_back(group.recv<float>(absl::MakeSpan(out), 1));
      works.push_back(group.barrier());
    }
    for (const Work& work : works) TESSERA_RETURN_IF_ERROR(expect_cancelled(work));
    is_over.open();
    return absl::OkStatus();
  };
  const JobSpec spec = {.setting = GetParam(), .num_clients = 2};
  if (GetParam() == Setting::kProcesses) {
    EXPECT_THAT(run_processes(spec, body)[0], IsOk());
  } else {
    // gRPC does not survive a fork of the process that has started it.
    EXPECT_THAT(run_isolated(kLimit, [&] { return run_threads(spec, body)[0]; }), IsOk());
  }
}

// Threads that wait for a send, or start more, while the last handle of the client goes.
TEST(OutlivingWorkTest, WaitersAreCancelledWhileTheClientGoes) {
  EXPECT_THAT(run_isolated(
                  kLimit,
                  []() -> Status {
                    for (int round = 0; round < 20; ++round) {
                      const std::vector<float> data(8, 1.0f);
                      std::vector<std::thread> waiters;
                      std::vector<Status> results(4);
                      {
                        TESSERA_ASSIGN_OR_RETURN(const Client client,
                                                 Client::connect({.num_local_devices = 2}));
                        TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1}, 0));
                        for (Status& result : results) {
                          const Work work = group.send<float>(data, 1);
                          waiters.emplace_back([work, &result] { result = work.await(); });
                        }
                      }
                      for (std::thread& waiter : waiters) waiter.join();
                      for (const Status& result : results) {
                        TESSERA_RETURN_IF_ERROR(expect_error(result, absl::StatusCode::kCancelled));
                      }
                    }
                    return absl::OkStatus();
                  }),
              IsOk());
}

}  // namespace
}  // namespace tessera::testing
