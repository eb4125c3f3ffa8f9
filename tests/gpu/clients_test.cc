// SPDX-License-Identifier: Apache-2.0
//
// Clients of one GPU each, as on a machine with one GPU that all share: every collective, and
// clients that do not arrive, are stopped, and die.
//
// Each body runs on the fakes, with clients as threads; and, with $TESSERA_TEST_GPU, on a GPU of
// the machine with CUDA and NCCL, with clients as processes. Ends has the cases that need processes
// and that a fake cannot imitate.
#include "tests/support/clients.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "collectives/nccl/fake/fake_nccl.h"
#include "collectives/nccl/gpu_sharing.h"
#include "collectives/nccl/open_api.h"
#include "collectives/nccl/testing/contract.h"
#include "collectives/testing/conformance.h"
#include "compute/cuda/fake/fake_math.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/fake/fake_cuda.h"
#include "device/cuda/open_api.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "dtensor/runtime.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/forked.h"
#include "tests/support/gate.h"
#include "tests/support/gpu.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/members.h"
#include "tests/support/shared.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;
using conformance::Case;

// The contract of nccl::Api on one GPU: each rank a process, as TESSERA_SHARE_GPUS has it. Runs
// first, because the other tests need it. On the fake: //collectives/nccl:contract_test.
class NcclOnSharedGpuTest : public ::testing::TestWithParam<nccl::ContractCase> {};

Status run_rank_as_process(const nccl::ContractCase& c, nccl::Meeting& meeting, int rank) {
  nccl::share_gpus_among_processes();
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<cuda::Api> cuda, cuda::open_api());
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<nccl::Api> nccl, nccl::open_api());
  return c.run_rank(*cuda, *nccl, meeting, rank, /*gpu=*/0);
}

TEST_P(NcclOnSharedGpuTest, KeepsTheContract) {
  if (const Status gpu = test_gpu_with_nccl(); !gpu.ok()) GTEST_SKIP() << gpu;
  Shared<nccl::Meeting> meeting;
  meeting->open(GetParam().num_ranks);
  for (const Status& status : run_forked(GetParam().num_ranks, absl::Seconds(100), [&](int rank) {
         return run_rank_as_process(GetParam(), *meeting, rank);
       })) {
    EXPECT_THAT(status, IsOk());
  }
}

INSTANTIATE_TEST_SUITE_P(Api, NcclOnSharedGpuTest, ::testing::ValuesIn(nccl::contract_cases()),
                         [](const auto& info) { return info.param.name; });

// The conformance suite of collectives: the cases of more than half of the form's devices. Making
// clients takes longer than most cases, so one job runs all of them, one after another, except
// cases that begin or leave a group as no other does.
class ConformanceOnSharedGpuTest : public JobFormTest {
 protected:
  static Status run_all(const std::vector<Case>& cases) { return run(body_of(cases)); }
  static ClientBody body_of(const std::vector<Case>& cases) {
    return [&](Client& client) -> Status {
      const std::vector<int> all = all_devices(client);
      TESSERA_ASSIGN_OR_RETURN(const Mesh mesh,
                               create_mesh(client, {{"x", static_cast<int64_t>(all.size())}}));
      for (const Case& c : cases) {
        const absl::Time start = steady_now();
        const std::vector<int> members(all.begin(), all.begin() + c.num_members);
        TESSERA_RETURN_IF_ERROR(with_context(run_members(client, members, c.body), c.name));
        if (cases.size() == 1) break;
        TESSERA_RETURN_IF_ERROR(mesh.barrier(c.name, absl::Minutes(2)));
        if (client.client_id() > 0) continue;
        std::fprintf(stderr, "%s: %s\n", c.name.c_str(),
                     absl::FormatDuration(steady_now() - start).c_str());
      }
      // Clears errors of calls that failed on purpose.
      client.sync_devices().IgnoreError();
      return absl::OkStatus();
    };
  }
};
INSTANTIATE_TEST_SUITE_P(Cuda, ConformanceOnSharedGpuTest, ::testing::ValuesIn(sharing_forms()),
                         job_form_name);

// They say that nothing has run before, or end with another number of operations on each member.
bool is_alone(const Case& c) {
  const std::string alone[] = {"late_member",
                               "late_member_goes_on",
                               "swapped_order",
                               "mutual_wait",
                               "zero_timeout",
                               "same_barrier_on_two_groups",
                               "earliest_deadline_decides"};
  return std::find(std::begin(alone), std::end(alone), c.name) != std::end(alone);
}

// Sweeps add and move in every dtype and size, which needs no process: f32 tells of all.
std::vector<Case> cases_of(int num_devices) {
  std::vector<Case> cases = conformance::all_cases();
  cases.push_back(conformance::random_ops_case(num_devices, 40, 20251122));
  conformance::limit_sweeps(cases, {.other_dtypes = 0});
  std::erase_if(cases, [&](const Case& c) {
    return c.num_members > num_devices || 2 * c.num_members <= num_devices;
  });
  return cases;
}

TEST_P(ConformanceOnSharedGpuTest, EveryCaseHolds) {
  std::vector<Case> cases = cases_of(GetParam().num_clients);
  std::erase_if(cases, is_alone);
  ASSERT_GT(cases.size(), 10u);
  EXPECT_THAT(run_all(cases), IsOk());
}

TEST_P(ConformanceOnSharedGpuTest, CasesThatNeedAJobOfTheirOwnHold) {
  if (GetParam().num_clients == 8) GTEST_SKIP() << "they have fewer members";
  for (const Case& c : cases_of(GetParam().num_clients)) {
    if (!is_alone(c)) continue;
    EXPECT_THAT(run_all({c}), IsOk()) << c.name;
  }
}

// Where NCCL adds: every dtype and reduction, within the table of numerics (docs/gpu.md).
TEST_P(ConformanceOnSharedGpuTest, SumsOfNcclAreWithinTheirTable) {
  std::vector<Case> cases = conformance::numerics_cases();
  std::erase_if(cases, [&](const Case& c) {
    return c.num_members > GetParam().num_clients || 2 * c.num_members <= GetParam().num_clients;
  });
  ASSERT_FALSE(cases.empty());
  ClientOptions options;
  options.backend = Backend::kNccl;
  EXPECT_THAT(run(body_of(cases), options), IsOk());
}

// How a client stops, goes on, and dies.
struct Ends {
  // By client 1, around its part of an operation that is to stand still in flight.
  std::function<Status(Client&)> before_standing_still;
  std::function<void()> while_standing_still;
  // By client 0.
  std::function<void()> go_on;
  // By client 1, in the middle of an operation. A client on the fake goes when its body returns,
  // and says so.
  std::function<Status()> die;
  StatusCode code_of_death = StatusCode::kCancelled;
  // Whether NCCL may report a lost client first, from a socket that closed.
  bool nccl_may_report_first = false;
  // A tensor that takes a while to send.
  int64_t many_elements = 1 << 16;
};
using Body = std::function<Status(Client& client, const Ends& ends)>;

struct Place {
  const char* name;
  bool is_real;
};
void PrintTo(const Place& place, std::ostream* out) { *out << place.name; }

std::vector<Place> places() {
  std::vector<Place> places = {{"Double", false}};
  if (is_test_gpu_asked_for()) places.push_back({"Gpu", true});
  return places;
}

class LossOnSharedGpuTest : public ::testing::TestWithParam<Place> {
 protected:
  static constexpr int kClients = 3;
  // For all operations of a test, also operations that are to succeed on a loaded machine.
  static constexpr absl::Duration kDeadline = absl::Seconds(10);

  void SetUp() override {
    if (!GetParam().is_real) return;
    if (const Status gpu = test_gpu_with_nccl(); !gpu.ok()) GTEST_SKIP() << gpu;
  }

  // Runs the body on each client; returns the first error of the survivors.
  static Status run(ClientOptions options, const Body& body,
                    const std::vector<int>& survivors = {0, 1, 2}) {
    options.device_type = DeviceType::kCuda;
    options.num_local_devices = 1;
    return GetParam().is_real ? run_as_processes(options, body, survivors)
                              : run_isolated(absl::Seconds(60), [&] {
                                  return run_as_threads(options, body, survivors);
                                });
  }

 private:
  static Status first_error(const std::vector<Status>& statuses,
                            const std::vector<int>& survivors) {
    for (const int client : survivors) {
      TESSERA_RETURN_IF_ERROR(with_context(statuses[client], absl::StrCat("client ", client)));
    }
    return absl::OkStatus();
  }

  static Status run_as_processes(const ClientOptions& options, const Body& body,
                                 const std::vector<int>& survivors) {
    Shared<std::atomic<pid_t>> still;
    Ends ends;
    ends.before_standing_still = [&](Client&) {
      *still = getpid();
      return absl::OkStatus();
    };
    ends.while_standing_still = [] {
      absl::SleepFor(absl::Milliseconds(30));  // sleep: so that some of the bytes are on their way
      kill(getpid(), SIGSTOP);
    };
    ends.go_on = [&] { kill(*still, SIGCONT); };
    ends.die = []() -> Status {
      kill(getpid(), SIGKILL);
      return absl::InternalError("survived SIGKILL");
    };
    ends.code_of_death = StatusCode::kUnavailable;
    ends.nccl_may_report_first = true;
    ends.many_elements = 16 << 20;
    return first_error(run_processes({.num_clients = kClients,
                                      .deadline = absl::Minutes(3),
                                      .options = options,
                                      .hooks = {.share_gpus = true}},
                                     [&](Client& client) { return body(client, ends); }),
                       survivors);
  }

  static Status run_as_threads(const ClientOptions& options, const Body& body,
                               const std::vector<int>& survivors) {
    const auto cuda = cuda::FakeCuda::create();
    const auto nccl = nccl::FakeNccl::create(cuda, {.shares_gpus = true});
    std::promise<void> gate;
    Ends ends;
    ends.before_standing_still = [&, opened = gate.get_future().share()](Client& client) -> Status {
      const cuda::CudaQueue& queue =
          dynamic_cast<cuda::CudaDevice&>(internal::runtime_of(client)->device(0)).queue();
      TESSERA_RETURN_IF_ERROR(cuda->set_device(queue.gpu()));
      return cuda->enqueue_work(
          "gate", {}, [opened] { opened.wait(); }, queue.handle());
    };
    ends.while_standing_still = [] {};
    ends.go_on = [&] { gate.set_value(); };
    ends.die = []() -> Status { return absl::AbortedError("died"); };
    TESSERA_RETURN_IF_ERROR(first_error(
        run_threads(
            {.num_clients = kClients,
             .options = options,
             .hooks = {.cuda = cuda::fake_libraries(cuda), .nccl = nccl, .share_gpus = true}},
            [&](Client& client) { return body(client, ends); }),
        survivors));
    TESSERA_REQUIRE(cuda->misuses().empty(), cuda->misuses()[0]);
    TESSERA_REQUIRE(nccl->misuses().empty(), nccl->misuses()[0]);
    return absl::OkStatus();
  }
};
INSTANTIATE_TEST_SUITE_P(Cuda, LossOnSharedGpuTest, ::testing::ValuesIn(places()),
                         [](const auto& info) { return std::string(info.param.name); });

// One value on each device, and the relayout that sends all of it to all.
struct Everywhere {
  DTensor shards;
  Layout whole;

  static StatusOr<Everywhere> create(Client& client, const std::vector<int>& devices,
                                     int64_t elements) {
    TESSERA_ASSIGN_OR_RETURN(
        const Mesh mesh,
        create_mesh(client, {{"x", static_cast<int64_t>(devices.size())}}, devices));
    TESSERA_ASSIGN_OR_RETURN(const Layout split, Layout::parse(mesh, "[x]"));
    TESSERA_ASSIGN_OR_RETURN(const Layout whole, Layout::parse(mesh, "[-]"));
    Everywhere self = {iota<int32_t>({elements}, split), whole};
    TESSERA_RETURN_IF_ERROR(self.shards.await());
    return self;
  }
  DTensor send() const { return relayout(shards, whole); }
  // Checks that every element reaches this client: to compare each with an oracle takes seconds.
  Status expect_works() const {
    TESSERA_ASSIGN_OR_RETURN(const HostTensor<int32_t> held, send().to_host<int32_t>());
    std::vector<int32_t> want(held.data.size());
    std::iota(want.begin(), want.end(), 0);
    TESSERA_REQUIRE(held.data == want);
    return absl::OkStatus();
  }
};

// A client that does not come is named at the deadline, nothing is in flight then, and the group
// works when it has arrived.
TEST_P(LossOnSharedGpuTest, AClientDoesNotCome) {
  Gate given_up;
  Gate all_well;
  ClientOptions options;
  options.collective_timeout = kDeadline;
  EXPECT_THAT(run(options,
                  [&](Client& client, const Ends&) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Everywhere x,
                                             Everywhere::create(client, {0, 1, 2}, 1000));
                    TESSERA_RETURN_IF_ERROR(x.expect_works());
                    if (client.client_id() == 1) {
                      TESSERA_RETURN_IF_ERROR(given_up.wait());
                      TESSERA_RETURN_IF_ERROR(given_up.wait());
                    }
                    TESSERA_RETURN_IF_ERROR(expect_error(
                        x.send().await(), StatusCode::kDeadlineExceeded, {"2 of 3", "client 1 "}));
                    if (client.client_id() != 1) given_up.open();
                    client.sync_devices().IgnoreError();
                    TESSERA_RETURN_IF_ERROR(x.expect_works());
                    return client.shutdown();
                  }),
              IsOk());
}

// All have arrived, and one stops: the deadline passes in flight for all, and when it goes on
// the group works again.
TEST_P(LossOnSharedGpuTest, AClientStandsStillInFlight) {
  ClientOptions options;
  options.collective_timeout = kDeadline;
  options.heartbeat_interval = absl::Seconds(60);  // standing still is no loss
  EXPECT_THAT(run(options,
                  [](Client& client, const Ends& ends) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(
                        const Everywhere x,
                        Everywhere::create(client, {0, 1, 2}, ends.many_elements));
                    TESSERA_RETURN_IF_ERROR(x.expect_works());
                    const bool stands_still = client.client_id() == 1;
                    // Also where this fails, so that the cause is reported and not a hang.
                    auto go_on = absl::MakeCleanup([&] {
                      if (client.client_id() == 0) ends.go_on();
                    });
                    if (stands_still) TESSERA_RETURN_IF_ERROR(ends.before_standing_still(client));
                    Status status = x.send().status();
                    // It may have been through already: then the next one is not.
                    for (int i = 0; status.ok() && i < 2; ++i) {
                      const DTensor sent = x.send();
                      if (stands_still && i == 0) ends.while_standing_still();
                      status = sent.await();
                    }
                    TESSERA_RETURN_IF_ERROR(expect_error(status, StatusCode::kDeadlineExceeded));
                    std::move(go_on).Invoke();
                    client.sync_devices().IgnoreError();
                    TESSERA_RETURN_IF_ERROR(x.expect_works());
                    return client.shutdown();
                  }),
              IsOk());
}

// A client that is killed while it runs is named, soon, and the others go on without it.
TEST_P(LossOnSharedGpuTest, AClientIsKilledInFlight) {
  EXPECT_THAT(
      run({},
          [](Client& client, const Ends& ends) -> Status {
            TESSERA_ASSIGN_OR_RETURN(const Everywhere x,
                                     Everywhere::create(client, {0, 1, 2}, ends.many_elements));
            TESSERA_RETURN_IF_ERROR(x.expect_works());
            Status status;
            for (int i = 0; status.ok(); ++i) {
              const DTensor sent = x.send();
              if (client.client_id() == 1 && i == 2) return ends.die();
              status = sent.await();
            }
            const absl::Time failed = steady_now();
            std::fprintf(stderr, "client %d first reports: %s\n", client.client_id(),
                         status.ToString().c_str());
            while (ends.nccl_may_report_first &&
                   !absl::StrContains(status.message(), "client 1 ")) {
              TESSERA_REQUIRE(steady_now() - failed < absl::Seconds(20), status.ToString());
              status = x.send().await();
              TESSERA_REQUIRE(!status.ok());
            }
            TESSERA_RETURN_IF_ERROR(expect_error(status, ends.code_of_death, {"client 1 "}));
            client.sync_devices().IgnoreError();
            TESSERA_ASSIGN_OR_RETURN(const Everywhere rest,
                                     Everywhere::create(client, {0, 2}, 1000));
            TESSERA_RETURN_IF_ERROR(rest.expect_works());
            return client.shutdown();
          },
          {0, 2}),
      IsOk());
}

}  // namespace
}  // namespace tessera::testing
