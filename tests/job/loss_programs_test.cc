// SPDX-License-Identifier: Apache-2.0
//
// A client ends while others run a call of several steps, each in groups of its own. A survivor
// makes that call only after the loss. All survivors get the loss, and their next calls in these
// groups are not one apart.
//
//   client 0   waits for the loss ....... step 1 with client 1: fails; step 2 with client 2
//   client 1   ends
//   client 2   step 1 with client 3; step 2 with client 0, which has an error to tell
//   client 3   step 1 with client 2; step 2 with client 1: fails
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "collectives/group.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "ops/contract.h"
#include "ops/reductions.h"
#include "relayout/plan.h"
#include "relayout/topology.h"
#include "tests/support/clients.h"
#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/support/matchers.h"
#include "tests/support/tensors.h"
#include "tests/support/verdicts.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;

// Far longer than the deadline of every test: a job that reaches it fails the test.
constexpr absl::Duration kNever = absl::Hours(1);
constexpr int kClients = 4;
constexpr int kVictim = 1;
const Shape kShape = {64, 64};

// Device d is of client d / 2. Axis y lies between clients 0 and 1, and between 2 and 3.
constexpr const char* kSquare = "{x=2, y=2} on 0,2,4,6";
constexpr const char* kLong = "{x=4, y=2} on 0,2,1,3,4,6,5,7";

// Groups of the devices of client 0 in ever new orders, until there is no room for another pair.
Status fill_control_region(const Client& client, std::vector<Group>& groups) {
  std::vector<int> ids = {0, 1, 2, 3, 4, 5, 6, 7};
  Status status;
  for (const int size : {8, 4, 2}) {
    const auto end = ids.begin() + size;
    do {
      StatusOr<Group> group = client.group({ids.begin(), end}, ids[0]);
      status = group.status();
      if (group.ok()) groups.push_back(*std::move(group));
      // So that the next permutation has another order of the first ones.
      std::sort(end, ids.end(), std::greater<int>());
    } while (status.ok() && std::next_permutation(ids.begin(), ids.end()));
  }
  return status;
}

DTensor relayout_to(const DTensor& tensor, const char* layout) {
  return relayout(tensor, Layout::parse(tensor.layout().mesh(), layout));
}

// A call of several groups: what starts it, and what waits for it.
struct Call {
  const char* name;
  const char* mesh;
  // The steps of the relayout to [-, -]: checks that the row tests the intended plan.
  size_t num_steps;
  DTensor (*start)(const DTensor& source);
  Status (*wait)(const DTensor& started);
  // Where there are several relayouts each client gets the error of the first that failed for it.
  bool is_one_relayout;
};

Status await(const DTensor& tensor) { return tensor.await(); }
Status to_host(const DTensor& tensor) { return tensor.to_host<float>().status(); }
DTensor keep(const DTensor& source) { return source; }
DTensor gather(const DTensor& source) { return relayout_to(source, "[-, -]"); }
DTensor square_of(const DTensor& source) {
  const DTensor shards = relayout_to(source, "[x, y]");
  return ops::matmul(shards, relayout_to(shards, "[y, -]"));
}

constexpr Call kRelayouts[] = {
    {"TwoSteps", kSquare, 2, gather, await, true},
    {"ThreeSteps", kLong, 3, gather, await, true},
};
constexpr Call kOtherCalls[] = {
    {"TwoRelayouts", kSquare, 2,
     [](const DTensor& source) { return relayout_to(relayout_to(source, "[x, -]"), "[-, x]"); },
     await, false},
    {"ToHost", kSquare, 2, keep, to_host, true},
    {"Product", kSquare, 2,
     [](const DTensor& source) { return relayout_to(square_of(source), "[-, -]"); }, await, false},
    {"Mean", kSquare, 2, [](const DTensor& source) { return ops::mean(square_of(source)); },
     to_host, false},
};

struct Case {
  Call call;
  int num_hosts;
  int late;        // the client that comes after the loss
  bool is_cached;  // all clients have made the call before
  bool has_deadline;
};

std::string name_of(const Case& c) {
  return absl::StrCat(c.call.name, "_", c.num_hosts, c.num_hosts == 1 ? "Host" : "Hosts", "_Late",
                      c.late, c.is_cached ? "_Cached" : "_First",
                      c.has_deadline ? "_Deadline" : "");
}
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << name_of(c); }

std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const int num_hosts : {1, 2}) {
    for (const Call& call : kRelayouts) {
      for (const int late : {0, 2, 3}) {
        for (const bool is_cached : {false, true}) {
          cases.push_back({call, num_hosts, late, is_cached, false});
        }
        cases.push_back({call, num_hosts, late, false, true});
      }
    }
    for (const Call& call : kOtherCalls) cases.push_back({call, num_hosts, 0, false, false});
  }
  return cases;
}

class LossProgramsTest : public ::testing::TestWithParam<Case> {
 protected:
  // The body of the other clients, with `source` made.
  Status survive(Client& client, const DTensor& source, const DTensor& other) {
    const Call& call = GetParam().call;
    Status status;
    if (client.client_id() == GetParam().late) {
      TESSERA_RETURN_IF_ERROR(wait_for_loss(client));
      status = call.wait(call.start(source));
    } else {
      const DTensor started = call.start(source);
      victim_may_end_.open();
      status = call.wait(started);
    }
    verdicts_.add(client.client_id(), status).IgnoreError();
    TESSERA_RETURN_IF_ERROR(
        expect_error(status, StatusCode::kUnavailable, {"client 1 ", "is lost"}));
    TESSERA_RETURN_IF_ERROR(go_on(client, other));
    return client.shutdown(absl::Seconds(20));
  }

  // A message that the victim never sends. Its group has no part in the call.
  Status wait_for_loss(Client& client) {
    const int own = client.local_devices()[1].id;
    TESSERA_ASSIGN_OR_RETURN(const Group pair, client.group({2 * kVictim + 1, own}, 1));
    std::vector<float> message(1);
    const Work work = pair.recv<float>(absl::MakeSpan(message), 0);
    victim_may_end_.open();
    return expect_error(work.wait(kNever), StatusCode::kUnavailable, {"client 1 ", "is lost"});
  }

  // The groups along x are of clients 0 and 2, and of 1 and 3.
  Status go_on(Client& client, const DTensor& other) {
    const DTensor gathered = gather(other);
    if (client.client_id() == 3) {
      TESSERA_RETURN_IF_ERROR(
          expect_error(gathered.await(), StatusCode::kUnavailable, {"client 1 ", "is lost"}));
    } else {
      TESSERA_RETURN_IF_ERROR(expect_iota<float>(gathered));
    }
    TESSERA_ASSIGN_OR_RETURN(const Mesh rest, live_mesh(client, "{x=3, y=2} on 0,1,4,5,6,7"));
    const DTensor x = iota<float>(kShape, Layout::parse(rest, "[x, y]"));
    return expect_iota<float>(gather(x));
  }

  Verdicts verdicts_;
  Gate victim_may_end_;
};
INSTANTIATE_TEST_SUITE_P(Cases, LossProgramsTest, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(LossProgramsTest, AllSurvivorsGetTheLoss) {
  const Case& c = GetParam();
  JobSpec spec = {.num_clients = kClients,
                  .devices_per_client = 2,
                  .deadline = absl::Seconds(60),
                  .hooks = {.topology = *Topology::uniform(2, 4)}};
  if (c.num_hosts > 1) spec.hooks.host_ids = on_hosts(kClients, c.num_hosts);
  if (c.has_deadline) spec.options.collective_timeout = absl::Seconds(15);
  const std::vector<Status> statuses = run_processes(spec, [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, c.call.mesh));
    TESSERA_ASSIGN_OR_RETURN(const Layout terms, Layout::parse(mesh, "[x, -] sum{y}"));
    TESSERA_ASSIGN_OR_RETURN(const Layout whole, Layout::parse(mesh, "[-, -]"));
    TESSERA_ASSIGN_OR_RETURN(
        const RelayoutPlan plan,
        plan_relayout(terms, whole, kShape, DType::kFloat32, {.topology = client.topology()}));
    TESSERA_REQUIRE(plan.steps().size() == c.call.num_steps, plan.explain());
    const DTensor source = full<float>(kShape, 1, terms);
    const DTensor other = iota<float>(kShape, Layout::parse(mesh, "[x, -]"));
    TESSERA_RETURN_IF_ERROR(source.await());
    TESSERA_RETURN_IF_ERROR(other.await());
    if (c.is_cached) TESSERA_RETURN_IF_ERROR(c.call.wait(c.call.start(source)));
    TESSERA_RETURN_IF_ERROR(mesh.barrier("before", absl::Seconds(40)));
    if (client.client_id() != kVictim) return survive(client, source, other);
    for (int i = 0; i < kClients - 1; ++i) TESSERA_RETURN_IF_ERROR(victim_may_end_.wait());
    _exit(0);
  });
  for (const int survivor : {0, 2, 3}) EXPECT_THAT(statuses[survivor], IsOk()) << survivor;
  if (c.call.is_one_relayout) {
    EXPECT_THAT(verdicts_.same({0, 2, 3}), IsOk());
  }
}

// The groups that client 0 leads have no room. Clients 0, 1 and 2 are in one, client 3 is not: it
// has the error of step 2 from client 1, which could not run step 1.
TEST(GroupErrorTest, ReachesTheClientsOfOtherGroups) {
  const JobSpec spec = {
      .num_clients = kClients, .num_devices = {8, 1, 1, 1}, .deadline = absl::Seconds(100)};
  const std::vector<Status> statuses = run_processes(spec, [](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2, y=2} on 0,8,9,10"));
    const DTensor source = full<float>(kShape, 1, Layout::parse(mesh, "[x, -] sum{y}"));
    TESSERA_RETURN_IF_ERROR(source.await());
    std::vector<Group> groups;
    if (client.client_id() == 0) {
      TESSERA_RETURN_IF_ERROR(
          expect_error(fill_control_region(client, groups), StatusCode::kResourceExhausted,
                       {"too many meshes and groups of devices are in use", "in which client 0"}));
    }
    TESSERA_RETURN_IF_ERROR(
        create_mesh(client, {{"x", 4}}, std::vector<int>{0, 8, 9, 10}).status());
    const std::string label = "relayout #1 ";
    TESSERA_RETURN_IF_ERROR(expect_error(
        gather(source).await(), StatusCode::kResourceExhausted,
        {label, "too many meshes and groups of devices are in use", "in which client 0"}));
    // Such a program is not kept.
    TESSERA_RETURN_IF_ERROR(
        create_mesh(client, {{"y", 4}}, std::vector<int>{0, 8, 9, 10}).status());
    groups.clear();
    // Client 0 gives room back when it needs some itself.
    if (client.client_id() == 0) TESSERA_RETURN_IF_ERROR(client.group({0, 8}, 0).status());
    TESSERA_RETURN_IF_ERROR(
        create_mesh(client, {{"z", 4}}, std::vector<int>{0, 8, 9, 10}).status());
    const DTensor whole = gather(source);
    TESSERA_RETURN_IF_ERROR(expect_shards<float>(whole, [](int64_t) { return 1.0f; }));
    return client.shutdown(absl::Seconds(20));
  });
  for (const Status& status : statuses) EXPECT_THAT(status, IsOk());
}

}  // namespace
}  // namespace tessera::testing
