// SPDX-License-Identifier: Apache-2.0
//
// The allocations of a small operation from call to result: never more than the tables below say,
// so that a change that makes every call copy something does not go unnoticed.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/reduce_op.h"
#include "base/status.h"
#include "collectives/group.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "tests/support/allocations.h"
#include "tests/support/clients.h"
#include "tests/support/matchers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

// The average number of allocations of a call, in all threads of the client: the lowest of several
// rounds, because the threads that keep the client in the job sometimes allocate too.
StatusOr<double> allocations_of(const std::function<Status()>& call) {
  constexpr int kRounds = 10;
  constexpr int kCalls = 50;
  double fewest = std::numeric_limits<double>::max();
  for (int round = 0; round <= kRounds; ++round) {
    const int64_t before = num_allocations();
    for (int i = 0; i < kCalls; ++i) TESSERA_RETURN_IF_ERROR(call());
    if (round == 0) continue;  // fills the caches
    fewest = std::min(fewest, static_cast<double>(num_allocations() - before) / kCalls);
  }
  return fewest;
}

struct Operation {
  const char* name;
  double most_allocations;
  std::function<Status()> call;
};

Status check(absl::Span<const Operation> operations) {
  std::string wrong;
  for (const Operation& operation : operations) {
    TESSERA_ASSIGN_OR_RETURN(const double taken, allocations_of(operation.call));
    if (taken <= operation.most_allocations) continue;
    absl::StrAppend(&wrong, operation.name, " takes ", taken, " allocations; ");
  }
  return wrong.empty() ? absl::OkStatus() : absl::InternalError(wrong);
}

struct Layouts {
  Layout rows;
  Layout columns;
  Layout replicated;
  Layout terms;

  static StatusOr<Layouts> of(const Client& client) {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2}"));
    TESSERA_ASSIGN_OR_RETURN(const Layout rows, Layout::parse(mesh, "[x, -]"));
    TESSERA_ASSIGN_OR_RETURN(const Layout columns, Layout::parse(mesh, "[-, x]"));
    TESSERA_ASSIGN_OR_RETURN(const Layout replicated, Layout::parse(mesh, "[-, -]"));
    TESSERA_ASSIGN_OR_RETURN(const Layout terms, Layout::parse(mesh, "[-, -] sum{x}"));
    return Layouts{rows, columns, replicated, terms};
  }
};

Status check_between_clients(Client& client) {
  TESSERA_ASSIGN_OR_RETURN(const Layouts to, Layouts::of(client));
  TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1}));
  const std::vector<float> in(256, 1);
  std::vector<float> out(512);
  const auto part_of_in = [&](int count) { return absl::MakeConstSpan(in).first(count); };
  const auto part_of_out = [&](int count) { return absl::MakeSpan(out).first(count); };
  const auto all_reduce = [&](int count) {
    return group.all_reduce<float>(part_of_in(count), part_of_out(count), ReduceOp::kSum).await();
  };
  // Up to 1 KiB per member is in the shared record, more is not.
  const DTensor small = full<float>({16, 16}, 1, to.rows);
  const DTensor large = full<float>({64, 64}, 1, to.rows);
  const DTensor terms = full<float>({16, 16}, 1, to.terms);
  const Operation operations[] = {
      {"barrier", 1, [&] { return group.barrier().await(); }},
      {"mesh.barrier", 3, [&] { return to.rows.mesh().barrier("step"); }},
      {"all_reduce of 8 B", 1, [&] { return all_reduce(2); }},
      {"all_reduce of 1 KiB", 1, [&] { return all_reduce(256); }},
      {"relayout of 1 KiB", 4, [&] { return relayout(small, to.columns).await(); }},
      {"relayout of 16 KiB", 4, [&] { return relayout(large, to.columns).await(); }},
      {"gather", 4, [&] { return relayout(large, to.replicated).await(); }},
      {"sum", 4, [&] { return relayout(terms, to.replicated).await(); }},
      {"identity", 1, [&] { return relayout(small, to.rows).await(); }},
  };
  return check(operations);
}

// Moves of equal parts, below and above the size that fits into the shared record.
Status check_moves_between_clients(Client& client) {
  TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1}));
  const ReduceOp sum = ReduceOp::kSum;
  for (const int part : {1, 4096}) {
    const std::vector<float> whole(2 * part, 1);
    std::vector<float> out(2 * part);
    const absl::Span<const float> all = whole;
    const absl::Span<const float> own = all.first(part);
    const absl::Span<float> all_out = absl::MakeSpan(out);
    const absl::Span<float> own_out = all_out.first(part);
    const std::vector<int64_t> counts(2, part);
    const Operation operations[] = {
        {"all_gather", 1, [&] { return group.all_gather(own, all_out).await(); }},
        {"all_gather, counts", 1, [&] { return group.all_gather(own, all_out, counts).await(); }},
        {"reduce_scatter", 1, [&] { return group.reduce_scatter(all, own_out, sum).await(); }},
        {"all_to_all", 1, [&] { return group.all_to_all(all, all_out).await(); }},
        {"gather", 1, [&] { return group.gather(own, all_out, 0).await(); }},
        {"scatter", 1, [&] { return group.scatter(all, own_out, 0).await(); }},
        {"broadcast", 1, [&] { return group.broadcast(own, own_out, 0).await(); }},
        {"reduce", 1, [&] { return group.reduce(own, own_out, sum, 0).await(); }},
    };
    const Status status = check(operations);
    TESSERA_REQUIRE(status.ok(), "parts of ", part, ": ", status.message());
  }
  return absl::OkStatus();
}

Status check_within_client(Client& client) {
  TESSERA_ASSIGN_OR_RETURN(const Layouts to, Layouts::of(client));
  const DTensor rows = full<float>({16, 16}, 1, to.rows);
  const DTensor terms = full<float>({16, 16}, 1, to.terms);
  // More than 32 KiB, which the threads of the devices move.
  const DTensor large = full<float>({256, 256}, 1, to.rows);
  const DTensor replicated = full<float>({256, 256}, 1, to.replicated);
  TESSERA_RETURN_IF_ERROR(rows.await());
  TESSERA_RETURN_IF_ERROR(replicated.await());
  TESSERA_RETURN_IF_ERROR(terms.await());
  const Operation operations[] = {
      {"mesh.barrier", 0, [&] { return to.rows.mesh().barrier("step"); }},
      {"relayout", 3, [&] { return relayout(rows, to.columns).await(); }},
      {"gather", 3, [&] { return relayout(rows, to.replicated).await(); }},
      {"sum", 3, [&] { return relayout(terms, to.replicated).await(); }},
      {"identity", 1, [&] { return relayout(rows, to.rows).await(); }},
      {"large view", 3, [&] { return relayout(replicated, to.rows).await(); }},
      {"large relayout", 6, [&] { return relayout(large, to.columns).await(); }},
  };
  return check(operations);
}

TEST(DispatchTest, BetweenClients) {
  const JobSpec job = {.setting = Setting::kProcesses, .num_clients = 2};
  EXPECT_THAT(run_clients(job, check_between_clients), IsOk());
}

TEST(DispatchTest, OfMovesBetweenClients) {
  const JobSpec job = {.setting = Setting::kProcesses, .num_clients = 2};
  EXPECT_THAT(run_clients(job, check_moves_between_clients), IsOk());
}

TEST(DispatchTest, BetweenDevicesOfAClient) {
  EXPECT_THAT(run_clients({.devices_per_client = 2}, check_within_client), IsOk());
}

// The allocations of the first relayout from one layout to another, with a client of so many
// devices.
StatusOr<int64_t> allocations_of_first(int num_devices, const char* from, const char* to) {
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect({.num_local_devices = num_devices}));
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", num_devices}}));
  TESSERA_ASSIGN_OR_RETURN(const Layout source, Layout::parse(mesh, from));
  TESSERA_ASSIGN_OR_RETURN(const Layout target, Layout::parse(mesh, to));
  const DTensor tensor = iota<float>({num_devices}, source);
  TESSERA_RETURN_IF_ERROR(tensor.await());
  const int64_t before = num_allocations();
  TESSERA_RETURN_IF_ERROR(relayout(tensor, target).await());
  return num_allocations() - before;
}

// Each of n devices pulls n boxes, or is told n boxes: one list of them serves all.
TEST(DispatchTest, AProgramOfManyDevicesAllocatesLinearly) {
  const char* const relayouts[][2] = {{"[x]", "[-]"}, {"[-] sum{x}", "[x]"}, {"[-] sum{x}", "[-]"}};
  for (const auto& [from, to] : relayouts) {
    SCOPED_TRACE(::testing::Message() << from << " to " << to);
    TESSERA_ASSERT_OK_AND_ASSIGN(const int64_t few, allocations_of_first(64, from, to));
    TESSERA_ASSERT_OK_AND_ASSIGN(const int64_t many, allocations_of_first(512, from, to));
    // 8 times where it is linear, 64 times where it is quadratic.
    EXPECT_LT(many, 16 * few) << few << " with 64 devices";
  }
}

}  // namespace
}  // namespace tessera::testing
