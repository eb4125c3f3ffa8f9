// SPDX-License-Identifier: Apache-2.0
//
// Threads that cannot be had: connect() and the operations that need one return ResourceExhausted,
// whichever thread it is, and the process goes on.
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "base/thread.h"
#include "collectives/collective.h"
#include "collectives/group.h"
#include "collectives/group_backend.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "dtensor/runtime.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/environment/host.h"
#include "job/environment/port.h"
#include "tests/support/forked.h"
#include "tests/support/matchers.h"
#include "tests/support/thread_limit.h"

namespace tessera {
namespace {

using testing::IsOk;
using testing::run_forked;
using testing::run_isolated;
using testing::ThreadLimit;

// Whether the error says that a thread cannot be started.
bool is_refusal(const Status& status) {
  return absl::IsResourceExhausted(status) &&
         absl::StrContains(status.message(), "cannot start a thread for ");
}

// With as many threads as there may be, one more each time, until the client connects.
TEST(ThreadLimitsTest, AnyThreadOfAClientMayBeRefused) {
  constexpr int kDevices = 20;
  const auto sweep = []() -> Status {
    for (int most = 0;; ++most) {
      const ThreadLimit limit(most);
      StatusOr<Client> client = Client::connect({.num_local_devices = kDevices});
      if (client.ok()) {
        TESSERA_REQUIRE(most >= kDevices, most);
        TESSERA_REQUIRE(limit.num_refused() == 0);
        return client->shutdown();
      }
      TESSERA_REQUIRE(is_refusal(client.status()), client.status().ToString());
      TESSERA_REQUIRE(limit.num_refused() == 1, "it goes on after the first one");
    }
  };
  EXPECT_THAT(run_isolated(absl::Seconds(100), sweep), IsOk());
}

// A job of two, whose clients have threads for each other; client 1's threads are refused.
TEST(ThreadLimitsTest, AnyThreadOfAClientOfTwoMayBeRefused) {
  int num_refusals = 0;
  for (bool connected = false; !connected; ++num_refusals) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const ReservedPort port, ReservedPort::create());
    ClientOptions options = {.coordinator = absl::StrCat("127.0.0.1:", port.port()),
                             .num_clients = 2,
                             .num_local_devices = 2,
                             .token = random_token(),
                             .connect_timeout = absl::Seconds(2)};
    const auto body = [&](int id) -> Status {
      options.client_id = id;
      const ThreadLimit limit(id == 1 ? num_refusals : 1000);
      TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect(options));
      return client.shutdown();
    };
    const std::vector<Status> results = run_forked(2, absl::Seconds(60), body);
    EXPECT_FALSE(absl::IsAborted(results[0])) << results[0];
    connected = results[1].ok();
    ASSERT_TRUE(connected || is_refusal(results[1])) << results[1];
  }
  // Its devices, the sockets of the host, the watch over the other client, the coordinator's three,
  // and at least eight that gRPC takes.
  EXPECT_GE(num_refusals, 2 + 1 + 1 + 3 + 8);
}

// A library that cannot say that it lacks a thread is not used where it would.
TEST(ThreadLimitsTest, ThreadsOfALibraryAreTriedBefore) {
  {
    const ThreadLimit limit(3);
    const Status refused = check_threads("a library", 4);
    EXPECT_TRUE(is_refusal(refused)) << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), "a library (number 4 of 4)")) << refused;
  }
  const ThreadLimit limit(4);
  EXPECT_THAT(check_threads("a library", 4), IsOk());
}

// Messages wait on threads of their own, which are made when they are first needed.
Status send_and_receive_without_threads() {
  constexpr int kRecords = 16;  // that many messages wait without a thread
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect({.num_local_devices = 2}));
  TESSERA_ASSIGN_OR_RETURN(const Group from, client.group({0, 1}, 0));
  TESSERA_ASSIGN_OR_RETURN(const Group to, client.group({0, 1}, 1));
  std::vector<int32_t> in(kRecords + 1);
  std::vector<int32_t> out(kRecords + 1, -1);
  for (int i = 0; i <= kRecords; ++i) in[i] = i;
  const auto message = [&](int i) { return absl::Span<const int32_t>(&in[i], 1); };
  std::vector<Work> sent;
  {
    const ThreadLimit none(0);
    const Status received = to.recv(absl::MakeSpan(&out[0], 1), 0).await();
    TESSERA_REQUIRE(is_refusal(received), received.ToString());
    for (int i = 0; i < kRecords; ++i) sent.push_back(from.send(message(i), 1));
    const Status one_too_many = from.send(message(kRecords), 1).await();
    TESSERA_REQUIRE(is_refusal(one_too_many), one_too_many.ToString());
  }
  sent.push_back(from.send(message(kRecords), 1));
  for (int i = 0; i <= kRecords; ++i) {
    TESSERA_RETURN_IF_ERROR(to.recv(absl::MakeSpan(&out[i], 1), 0).await());
  }
  TESSERA_REQUIRE(out == in);
  for (const Work& work : sent) TESSERA_RETURN_IF_ERROR(work.await());
  return client.shutdown();
}

// A message that failed keeps its record until the receiver knows of it. The next ones wait, which
// their device must not do.
Status send_after_failures_without_threads() {
  constexpr int kRecords = 16;
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect({.num_local_devices = 2}));
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<GroupBackend> backend,
                           internal::runtime_of(client)->programs().group({0, 1}));
  const Collective::Ptr wrong =
      Collective::refused({2, 0}, {.kind = OpKind::kSendRecv, .ends = {0, 1}},
                          absl::InvalidArgumentError("wrong on purpose"));
  {
    const ThreadLimit none(0);
    const Status first = backend->start(wrong, {}).await();
    TESSERA_REQUIRE(absl::IsInvalidArgument(first), first.ToString());
    for (int i = 0; i < kRecords; ++i) {
      const Status next = backend->start(wrong, {}).await();
      TESSERA_REQUIRE(is_refusal(next), next.ToString());
    }
  }
  // The stream is free, and reports the first message.
  const Status synced = client.sync_devices();
  TESSERA_REQUIRE(absl::IsInvalidArgument(synced), synced.ToString());
  return client.shutdown();
}

TEST(ThreadLimitsTest, MessagesBehindOneThatFailedNeedAThread) {
  EXPECT_THAT(run_isolated(absl::Seconds(60), send_after_failures_without_threads), IsOk());
}

TEST(ThreadLimitsTest, MessagesThatNeedAThreadFailAndTheNextOnesWork) {
  EXPECT_THAT(run_isolated(absl::Seconds(60), send_and_receive_without_threads), IsOk());
}

}  // namespace
}  // namespace tessera
