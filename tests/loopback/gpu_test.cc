// SPDX-License-Identifier: Apache-2.0
//
// GPUs of two hosts, on the fakes of CUDA and NCCL: the conformance suite of collectives,
// relayouts, NCCL's errors, and clients that are late or lost. Each host has GPUs of its own, of
// equal places.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/nccl/fake/fake_nccl.h"
#include "collectives/testing/conformance.h"
#include "compute/cuda/fake/fake_math.h"
#include "device/cuda/fake/fake_cuda.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/clients.h"
#include "tests/support/expect_error.h"
#include "tests/support/forked.h"
#include "tests/support/gate.h"
#include "tests/support/matchers.h"
#include "tests/support/members.h"
#include "tests/support/sanitizers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;
using conformance::Case;

// Clients of two hosts with as many GPUs each as their clients have devices.
struct GpusOfTwoHosts {
  std::shared_ptr<cuda::FakeCuda> cuda;
  std::shared_ptr<nccl::FakeNccl> nccl;
  JobSpec spec;

  explicit GpusOfTwoHosts(int num_clients, int devices_per_client = 1,
                          const ClientOptions& options = {})
      : cuda(cuda::FakeCuda::create({.num_gpus = (num_clients + 1) / 2 * devices_per_client})),
        // Ranks of two hosts may be on GPUs of equal places: the fake tells them apart as it does
        // processes that share a GPU.
        nccl(nccl::FakeNccl::create(cuda, {.shares_gpus = true})),
        spec({.setting = Setting::kThreads,
              .num_clients = num_clients,
              .devices_per_client = devices_per_client,
              .options = options,
              .hooks = {.host_ids = on_hosts(num_clients, 2),
                        .cuda = cuda::fake_libraries(cuda),
                        .nccl = nccl}}) {
    spec.options.device_type = DeviceType::kCuda;
  }
  Status run(const ClientBody& body) const {
    return run_clients(spec, [&](Client& client) -> Status {
      TESSERA_RETURN_IF_ERROR(body(client));
      for (const std::vector<std::string>& misuses : {cuda->misuses(), nccl->misuses()}) {
        TESSERA_REQUIRE(misuses.empty(), misuses[0]);
      }
      return absl::OkStatus();
    });
  }
};

class GpusOfHostsTest : public ::testing::TestWithParam<std::tuple<int, Case>> {};

TEST_P(GpusOfHostsTest, HoldBetweenTwoHosts) {
  const auto& [devices_per_client, c] = GetParam();
  const int num_clients = c.num_members / devices_per_client;
  if (c.num_members % devices_per_client != 0 || num_clients < 2) GTEST_SKIP() << "one client";
  EXPECT_THAT(GpusOfTwoHosts(num_clients, devices_per_client)
                  .run([&body = c.body](Client& client) -> Status {
                    return run_members(client, all_devices(client), body);
                  }),
              IsOk());
}

std::vector<Case> cases() {
  std::vector<Case> all = conformance::all_cases();
  conformance::limit_sweeps(all, kSanitized ? conformance::SweepLimits{.f32 = 4, .other_dtypes = 0}
                                            : conformance::SweepLimits{.other_dtypes = 4});
  all.push_back(conformance::random_ops_case(4, 100, 20240607));
  return all;
}

INSTANTIATE_TEST_SUITE_P(Cuda, GpusOfHostsTest,
                         ::testing::Combine(::testing::Values(1, 2), ::testing::ValuesIn(cases())),
                         [](const auto& info) {
                           return absl::StrCat("devices_", std::get<0>(info.param), "_",
                                               std::get<1>(info.param).name);
                         });

// 2 x 2 clients of one GPU.
TEST(GpusOfTwoHostsTest, RelayoutsGiveTheDenseValue) {
  EXPECT_THAT(GpusOfTwoHosts(4).run([](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{host=2, client=2}"));
    const DTensor x = iota<float>({6, 10}, Layout::parse(mesh, "[(host,client), -]"));
    for (const char* layout :
         {"[-, (client,host)]", "[client, host]", "[-, -]", "[host, client]"}) {
      TESSERA_RETURN_IF_ERROR(expect_iota<float>(relayout(x, Layout::parse(mesh, layout))));
    }
    return absl::OkStatus();
  }),
              IsOk());
}

// Groups that have the same members on one host, and others on the second.
TEST(GpusOfTwoHostsTest, GroupsDifferOnTheOtherHost) {
  EXPECT_THAT(GpusOfTwoHosts(4).run([](Client& client) -> Status {
    for (const std::vector<int>& ids : {std::vector{0, 2}, {0, 3}, {1, 2}, {0, 1, 3}}) {
      const auto size = static_cast<int64_t>(ids.size());
      if (std::find(ids.begin(), ids.end(), client.client_id()) == ids.end()) continue;
      TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", size}}, ids));
      const DTensor x = iota<float>({7}, Layout::parse(mesh, "[x]"));
      TESSERA_RETURN_IF_ERROR(expect_iota<float>(relayout(x, Layout::parse(mesh, "[-]"))));
    }
    return absl::OkStatus();
  }),
              IsOk());
}

// The deadline is infinite: what ends the operations is the word of the host that saw the error.
TEST(GpusOfTwoHostsTest, AFailureInFlightIsTheErrorOfBothHosts) {
  const GpusOfTwoHosts job(4);
  job.nccl->break_link(3, absl::UnavailableError("ncclRemoteError: a peer is gone"));
  EXPECT_THAT(job.run([](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4}"));
    const auto whole = Layout::parse(mesh, "[-]");
    const DTensor x = iota<float>({10}, Layout::parse(mesh, "[x]"));
    TESSERA_RETURN_IF_ERROR(x.await());
    TESSERA_RETURN_IF_ERROR(
        expect_error(relayout(x, whole).await(), StatusCode::kUnavailable, {"ncclRemoteError"}));
    TESSERA_RETURN_IF_ERROR(expect_error(client.sync_devices(), StatusCode::kUnavailable));
    return expect_iota<float>(relayout(x, whole));
  }),
              IsOk());
}

// A client that does not come is named on both hosts, and nothing is in flight then.
TEST(GpusOfTwoHostsTest, ALateClientIsNamedAtTheDeadline) {
  Gate given_up;
  ClientOptions options;
  options.collective_timeout = absl::Seconds(10);
  const GpusOfTwoHosts job(4, 1, options);
  EXPECT_THAT(job.run([&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4}"));
    const auto whole = Layout::parse(mesh, "[-]");
    const DTensor x = iota<float>({10}, Layout::parse(mesh, "[x]"));
    TESSERA_RETURN_IF_ERROR(expect_iota<float>(relayout(x, whole)));
    const bool is_late = client.client_id() == 2;
    if (is_late) {
      for (int i = 0; i < 3; ++i) TESSERA_RETURN_IF_ERROR(given_up.wait());
    }
    TESSERA_RETURN_IF_ERROR(expect_error(relayout(x, whole).await(), StatusCode::kDeadlineExceeded,
                                         {"3 of 4 clients arrived", "client 2 "}));
    if (!is_late) given_up.open();
    client.sync_devices().IgnoreError();
    return expect_iota<float>(relayout(x, whole));
  }),
              IsOk());
}

// The clients of both hosts are told, and the survivors go on.
TEST(GpusOfTwoHostsTest, ALostClientIsNamed) {
  for (const int victim : {1, 3}) {
    const GpusOfTwoHosts job(4);
    Gate have_values;
    const auto body = [&](Client& client) -> Status {
      TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4}"));
      const auto whole = Layout::parse(mesh, "[-]");
      const DTensor x = iota<float>({1000}, Layout::parse(mesh, "[x]"));
      TESSERA_RETURN_IF_ERROR(expect_iota<float>(relayout(x, whole)));
      if (client.client_id() == victim) {
        for (int i = 0; i < 3; ++i) TESSERA_RETURN_IF_ERROR(have_values.wait());
        return absl::AbortedError("died");
      }
      have_values.open();
      // A client that is a thread goes when its body returns: it says so to its own host, and its
      // connection to the coordinator breaks.
      const Status status = relayout(x, whole).await();
      TESSERA_REQUIRE(absl::IsUnavailable(status) || absl::IsCancelled(status), status.ToString());
      TESSERA_REQUIRE(absl::StrContains(status.message(), absl::StrCat("client ", victim, " ")),
                      status.ToString());
      client.sync_devices().IgnoreError();
      std::vector<int> rest = {0, 1, 2, 3};
      rest.erase(rest.begin() + victim);
      TESSERA_ASSIGN_OR_RETURN(const Mesh left, create_mesh(client, {{"x", 3}}, rest));
      const DTensor y = iota<float>({10}, Layout::parse(left, "[x]"));
      TESSERA_RETURN_IF_ERROR(expect_iota<float>(relayout(y, Layout::parse(left, "[-]"))));
      return client.shutdown();
    };
    EXPECT_THAT(run_isolated(absl::Seconds(60),
                             [&]() -> Status {
                               const std::vector<Status> statuses = run_threads(job.spec, body);
                               std::string errors;
                               for (int client = 0; client < 4; ++client) {
                                 if (client == victim || statuses[client].ok()) continue;
                                 absl::StrAppend(&errors, "client ", client, ": ",
                                                 statuses[client].ToString(), "\n");
                               }
                               return errors.empty() ? absl::OkStatus()
                                                     : absl::InternalError(errors);
                             }),
                IsOk());
  }
}

}  // namespace
}  // namespace tessera::testing
