// SPDX-License-Identifier: Apache-2.0
//
// A rank of mpi_test, as a user's MPI program.
//
//   engine CASE...  cases of the suite for engines (engine_conformance.h) on the engine on MPI
//   losing CASE     a case of the suite that loses rank 1
//   collectives     the conformance suite of collectives for as many members as ranks, two hosts
//   hosts           the ranks are on two hosts of make_hosts: the suite without sweeps in one job,
//                   relayouts and barriers, and the bytes that eth0 sends for an all_reduce
//   two_engines     two clients of one process, one on UCX and one on MPI
//   finalize        MPI_Finalize() while the client still lives
//
// Prints "rank K: ok" where all is well, else the error.
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/testing/conformance.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "tessera/mpi.h"
#include "tests/hosts/hosts.h"
#include "tests/support/coordinator/fake_coordinator.h"
#include "tests/support/forked.h"
#include "tests/support/members.h"
#include "tests/support/sanitizers.h"
#include "tests/support/tensors.h"
#include "transport/mpi/mpi_engine.h"
#include "transport/testing/engine_conformance.h"
#include "transport/ucx/ucx_engine.h"

// MPI keeps memory until the process ends.
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libmpi\nleak:libopen-pal\nleak:libopen-rte\nleak:libcares\nleak:libpmix\nleak:mca_"
         "\n";
}
extern "C" const char* __lsan_default_options() { return "print_suppressions=0"; }

namespace tessera {
namespace {

StatusOr<transport::EngineCase> case_of(const std::string& name) {
  for (const transport::EngineCase& c : transport::engine_cases()) {
    if (c.name == name) return c;
  }
  return absl::InvalidArgumentError(absl::StrCat("there is no case ", name));
}

Status run_engine_case(const std::string& name) {
  TESSERA_ASSIGN_OR_RETURN(const transport::EngineCase c, case_of(name));
  TESSERA_ASSIGN_OR_RETURN(const ClientOptions options, mpi::adopt(MPI_COMM_WORLD));
  return run_as_client(
      c, [&](Coordinator& coordinator) { return mpi::make_mpi_engine(coordinator, options.mpi); },
      {.finds_death = false}, options.coordinator, *options.client_id);
}

StatusOr<Client> connect_on_two_hosts(ReductionOrder order = ReductionOrder::kByHost) {
  int rank = 0, num_ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
  setenv("TESSERA_HOST_ID", rank * 2 < num_ranks ? "host-a" : "host-b", 1);
  TESSERA_ASSIGN_OR_RETURN(const ClientOptions options,
                           mpi::adopt(MPI_COMM_WORLD, {.reduction_order = order}));
  TESSERA_REQUIRE(*options.client_id == rank && *options.num_clients == num_ranks);
  return Client::connect(options);
}

// Each case is a job of its own, which adopts the communicator again.
Status run_case(const conformance::Case& c) {
  TESSERA_ASSIGN_OR_RETURN(Client client, connect_on_two_hosts(conformance::is_of_ascending_order(c)
                                                                   ? ReductionOrder::kFlat
                                                                   : ReductionOrder::kByHost));
  TESSERA_RETURN_IF_ERROR(testing::run_members(client, testing::all_devices(client), c.body));
  return client.shutdown();
}

Status run_collectives() {
  int num_ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
  std::vector<conformance::Case> cases = conformance::all_cases();
  // hosts/conformance_test adds in every dtype between hosts.
  conformance::limit_sweeps(cases, {.other_dtypes = testing::kSanitized ? 0 : 2});
  cases.push_back(conformance::random_ops_case(num_ranks, 300, 20240607));
  for (const conformance::Case& c : cases) {
    // A circle of waits that no host sees whole ends at a deadline.
    if (c.num_members != num_ranks) continue;
    TESSERA_RETURN_IF_ERROR(with_context(run_case(c), c.name));
  }
  return absl::OkStatus();
}

// On a host with half of the ranks: each byte of the sum of the other host crosses once.
Status all_reduce_and_count(Client& client, const Mesh& mesh) {
  constexpr int64_t kBytes = 16 << 20;
  TESSERA_ASSIGN_OR_RETURN(const Group group, client.group(testing::all_devices(client)));
  std::vector<float> data(kBytes / sizeof(float), 1);
  TESSERA_RETURN_IF_ERROR(mesh.barrier("quiet"));
  TESSERA_ASSIGN_OR_RETURN(const int64_t before, testing::sent_bytes());
  TESSERA_RETURN_IF_ERROR(mesh.barrier("counted"));
  TESSERA_RETURN_IF_ERROR(
      group.all_reduce<float>(data, absl::MakeSpan(data), ReduceOp::kSum).wait(absl::Minutes(1)));
  TESSERA_RETURN_IF_ERROR(mesh.barrier("over"));
  TESSERA_ASSIGN_OR_RETURN(const int64_t after, testing::sent_bytes());
  const double times = static_cast<double>(after - before) / kBytes;
  TESSERA_REQUIRE(times > 1 && times < 1.1, "sent ", times, " times the bytes");
  const float expected = static_cast<float>(client.num_clients());
  TESSERA_REQUIRE(std::count(data.begin(), data.end(), expected) == std::ssize(data));
  return absl::OkStatus();
}

// Nothing says which rank is on which host, but the kernel.
Status run_on_hosts() {
  TESSERA_ASSIGN_OR_RETURN(const ClientOptions options, mpi::adopt(MPI_COMM_WORLD));
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect(options));
  const int num_clients = client.num_clients();
  std::vector<conformance::Case> cases = conformance::all_cases();
  conformance::limit_sweeps(cases, {.f32 = 0, .other_dtypes = 0});
  cases.push_back(conformance::random_ops_case(num_clients, 100, 20240607));
  for (const conformance::Case& c : cases) {
    if (c.num_members != num_clients || conformance::is_of_ascending_order(c)) continue;
    TESSERA_RETURN_IF_ERROR(
        with_context(testing::run_members(client, testing::all_devices(client), c.body), c.name));
  }
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", num_clients}}));
  const DTensor x = iota<float>({70, 30}, Layout::parse(mesh, "[x, -]"));
  TESSERA_RETURN_IF_ERROR(testing::expect_iota<float>(relayout(x, Layout::parse(mesh, "[-, x]"))));
  TESSERA_RETURN_IF_ERROR(all_reduce_and_count(client, mesh));
  return client.shutdown();
}

Status finalize_early() {
  TESSERA_ASSIGN_OR_RETURN(Client client, connect_on_two_hosts());
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", client.num_clients()}}));
  TESSERA_RETURN_IF_ERROR(mesh.barrier("before"));
  MPI_Finalize();
  const Status late = mesh.barrier("after", absl::Seconds(10));
  TESSERA_REQUIRE(absl::IsUnavailable(late), late.ToString());
  TESSERA_REQUIRE(absl::IsFailedPrecondition(mpi::adopt(MPI_COMM_WORLD).status()));
  return absl::OkStatus();
}

Status connect_two_engines() {
  TESSERA_ASSIGN_OR_RETURN(const ClientOptions options, mpi::adopt(MPI_COMM_WORLD));
  testing::FakeJob job({1, 1});
  TESSERA_ASSIGN_OR_RETURN(
      const auto first,
      ucx::make_ucx_engine(job.coordinator(0), {.interface = "lo", .wait_policy = {}}));
  TESSERA_ASSIGN_OR_RETURN(const auto second,
                           mpi::make_mpi_engine(job.coordinator(1), options.mpi));
  Status of_second;
  std::thread other([&] { of_second = second->connect({0}, steady_now() + absl::Seconds(30)); });
  const Status of_first = first->connect({1}, steady_now() + absl::Seconds(30));
  other.join();
  for (const Status& status : {of_first, of_second}) {
    TESSERA_REQUIRE(absl::IsInvalidArgument(status), status.ToString());
    std::printf("%s\n", status.ToString().c_str());
  }
  return absl::OkStatus();
}

Status refuse() {
  const Status early = mpi::adopt(MPI_COMM_WORLD).status();
  std::printf("%s\n", early.ToString().c_str());
  int level = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level);
  const Status status = mpi::adopt(MPI_COMM_WORLD).status();
  std::printf("%s\n", status.ToString().c_str());
  return absl::OkStatus();
}

Status run(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "refuse") return refuse();
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  if (mode == "two_engines") return connect_two_engines();
  if (mode == "engine" || mode == "losing") {
    for (int i = 2; i < argc; ++i) {
      TESSERA_RETURN_IF_ERROR(with_context(run_engine_case(argv[i]), argv[i]));
    }
    return absl::OkStatus();
  }
  if (mode == "hosts") return run_on_hosts();
  return mode == "finalize" ? finalize_early() : run_collectives();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const tessera::Status status = tessera::run(argc, argv);
  std::printf("rank %s: %s\n", getenv("OMPI_COMM_WORLD_RANK"),
              status.ok() ? "ok" : status.ToString().c_str());
  std::fflush(stdout);
  int is_finalized = 0;
  MPI_Finalized(&is_finalized);
  // A rank of a case in which a process was killed cannot: it would wait for that one.
  const bool loses_a_rank = argc > 1 && std::string(argv[1]) == "losing";
  if (loses_a_rank) _exit(0);
  if (is_finalized == 0) MPI_Finalize();
  return 0;
}
