// SPDX-License-Identifier: Apache-2.0
//
// Jobs over 2, 3 and 4 hosts that share no memory: the values of operations, the bytes that each
// host sent for them, as its eth0 counted, and the measured network.
#include <atomic>
#include <cstdint>
#include <functional>
#include <iterator>
#include <ostream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/testing/conformance.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "relayout/topology.h"
#include "tests/hosts/hosts.h"
#include "tests/hosts/meeting.h"
#include "tests/support/expect_error.h"
#include "tests/support/matchers.h"
#include "tests/support/members.h"
#include "tests/support/shared.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

using ::testing::Each;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr int kMostHosts = 4;
constexpr int kMostMembers = 8;

// S, the bytes that the bounds below are multiples of, and as many floats as that.
constexpr int64_t kCount = 3 << 20;
constexpr int64_t kBytes = kCount * sizeof(float);

// An element of what member `member` has. Whole numbers, whose sums are exact.
float value(int64_t member, int64_t i) {
  return static_cast<float>((i * 7 + i / 1000 + member * 31) % 101);
}

float sum_of_values(int64_t num_members, int64_t i) {
  float sum = 0;
  for (int64_t k = 0; k < num_members; ++k) sum += value(k, i);
  return sum;
}

std::vector<float> values(int64_t member, int64_t begin, int64_t end) {
  std::vector<float> result(end - begin);
  for (int64_t i = begin; i < end; ++i) result[i - begin] = value(member, i);
  return result;
}

Status expect_values(absl::Span<const float> got, const std::function<float(int64_t)>& expected) {
  for (int64_t i = 0; i < static_cast<int64_t>(got.size()); ++i) {
    TESSERA_REQUIRE(got[i] == expected(i), "element ", i, " is ", got[i], ", not ", expected(i));
  }
  return absl::OkStatus();
}

// A client's part in an operation. Each client has one device.
struct Member {
  Client& client;
  const Group& group;
  Mesh mesh;  // {x=P}
  int64_t size() const { return group.size(); }
  int64_t position() const { return group.position(); }
};
using Operation = Status (*)(const Member&);

Status all_reduce(const Member& m) {
  std::vector<float> data = values(m.position(), 0, kCount);
  TESSERA_RETURN_IF_ERROR(
      m.group.all_reduce<float>(data, absl::MakeSpan(data), ReduceOp::kSum).wait(kTimeout));
  return expect_values(data, [&](int64_t i) { return sum_of_values(m.size(), i); });
}

Status reduce_scatter(const Member& m) {
  const int64_t part = kCount / m.size();
  const std::vector<float> in = values(m.position(), 0, kCount);
  std::vector<float> out(part);
  TESSERA_RETURN_IF_ERROR(m.group.reduce_scatter(in, out, ReduceOp::kSum).wait(kTimeout));
  return expect_values(out,
                       [&](int64_t i) { return sum_of_values(m.size(), m.position() * part + i); });
}

Status all_gather(const Member& m) {
  const int64_t part = kCount / m.size();
  const std::vector<float> in = values(m.position(), 0, part);
  std::vector<float> out(kCount);
  TESSERA_RETURN_IF_ERROR(m.group.all_gather(in, out).wait(kTimeout));
  return expect_values(out, [&](int64_t i) { return value(i / part, i % part); });
}

Status all_to_all(const Member& m) {
  const int64_t part = kCount / m.size();
  const std::vector<float> in = values(m.position(), 0, kCount);
  std::vector<float> out(kCount);
  TESSERA_RETURN_IF_ERROR(m.group.all_to_all(in, out).wait(kTimeout));
  return expect_values(out,
                       [&](int64_t i) { return value(i / part, m.position() * part + i % part); });
}

Status broadcast(const Member& m) {
  const std::vector<float> in = values(0, 0, m.position() == 0 ? kCount : 0);
  std::vector<float> out(kCount);
  TESSERA_RETURN_IF_ERROR(m.group.broadcast(in, out, 0).wait(kTimeout));
  return expect_values(out, [](int64_t i) { return value(0, i); });
}

// A barrier of all members. A few letters pass, and no tensor.
Status barrier(const Member& m) { return m.mesh.barrier("met", kTimeout); }

// A tensor of 12 MiB, where the value of each element is its number, and back.
Status relayout_between(const Member& m, const char* from, const char* to) {
  const DTensor source =
      iota<float>({m.size() * 16, kCount / m.size() / 16}, Layout::parse(m.mesh, from));
  return expect_iota<float>(relayout(source, Layout::parse(m.mesh, to)));
}
Status relayout_to_columns(const Member& m) { return relayout_between(m, "[x, -]", "[-, x]"); }
Status relayout_to_replicas(const Member& m) { return relayout_between(m, "[x, -]", "[-, -]"); }

// The sum of what all members have, for all.
Status relayout_of_sums(const Member& m) {
  TESSERA_ASSIGN_OR_RETURN(const Layout from, Layout::parse(m.mesh, "[-] sum{x}"));
  TESSERA_ASSIGN_OR_RETURN(const Layout to, Layout::parse(m.mesh, "[-]"));
  const Shape shape = {kCount};
  const std::vector<HostTensor<float>> terms = {
      {.shape = shape, .data = values(m.position(), 0, kCount)}};
  return expect_shards<float>(relayout(from_shards<float>(shape, from, terms), to),
                              [&](int64_t i) { return sum_of_values(m.size(), i); });
}

// The parameters of the bounds: a host with L of the P members, of H hosts.
struct HostPlace {
  double L, P, H;
  // As many members on all hosts.
  bool is_even;
  bool has_root;
};

// The bytes that a host sends at least and at most, in S, without headers. At least: the bytes that
// other hosts cannot do without. At most: a table of docs/internals/between_hosts.md.
struct Traffic {
  Operation operation;
  const char* name;
  double (*least)(const HostPlace& h);
  double (*most)(const HostPlace& h);
};

double nothing(const HostPlace&) { return 0; }
// A part of S from each of its members, and from each to each member elsewhere.
double own_parts(const HostPlace& h) { return h.L / h.P; }
double own_parts_to_members(const HostPlace& h) { return h.L / h.P * (h.P - h.L); }
double own_parts_to_hosts(const HostPlace& h) { return h.L / h.P * (h.H - 1); }
// A sum of the host, of all parts that members elsewhere add.
double parts_of_others(const HostPlace& h) { return 1 - own_parts(h); }

// clang-format off
const Traffic kTraffic[] = {
    // One sum has to leave each host, be it of its terms or of all.
    {all_reduce, "all_reduce", [](const HostPlace&) { return 1.0; },
     [](const HostPlace& h) { return parts_of_others(h) + own_parts_to_hosts(h); }},
    {reduce_scatter, "reduce_scatter", parts_of_others, parts_of_others},
    {all_gather, "all_gather", own_parts, own_parts_to_hosts},
    {all_to_all, "all_to_all", own_parts_to_members, own_parts_to_members},
    {broadcast, "broadcast", [](const HostPlace& h) { return h.has_root ? 1.0 : 0.0; },
     [](const HostPlace& h) { return h.has_root ? h.H - 1 : 0; }},
    {barrier, "barrier", nothing, nothing},
    // Here S is the tensor, of which each member has a part.
    {relayout_to_columns, "relayout_to_columns",
     [](const HostPlace& h) { return own_parts(h) * (1 - own_parts(h)); },
     [](const HostPlace& h) { return own_parts(h) * (1 - own_parts(h)); }},
    // Relayouts are planned by host; where they cannot be, each member fetches its own elements.
    {relayout_to_replicas, "relayout_to_replicas", own_parts,
     [](const HostPlace& h) { return h.is_even ? own_parts_to_hosts(h) : own_parts_to_members(h); }},
    {relayout_of_sums, "relayout_of_sums", [](const HostPlace&) { return 1.0; },
     [](const HostPlace& h) { return h.is_even ? 2 * (h.H - 1) / h.H
                                               : own_parts_to_members(h) + own_parts_to_hosts(h); }},
};
// clang-format on

// Headers, and acknowledgements of received bytes; letters of the group, heartbeats, and bytes that
// TCP sends again where the machine is so loaded that no acknowledgement arrives in time. A
// tensor's byte that crosses twice would add ten times as much.
constexpr double kOverhead = 0.05;
constexpr double kLetters = 0.05;

struct Form {
  const char* name;
  std::vector<int> clients_per_host;
  // The rate of each host's sends; empty: no limit.
  const char* rate = "";
  Backend backend = Backend::kAuto;
};
std::ostream& operator<<(std::ostream& out, const Form& form) { return out << form.name; }

std::vector<Form> forms() {
  std::vector<Form> all = {{"OneAndOne", {1, 1}},       {"TwoAndTwo", {2, 2}},
                           {"FourAndFour", {4, 4}},     {"TwoOneAndOne", {2, 1, 1}},
                           {"FourOfOne", {1, 1, 1, 1}}, {"TwoAndTwoAtOneGigabit", {2, 2}, "1gbit"}};
  if (kHasGloo) all.push_back({"TwoOneAndOneByGloo", {2, 1, 1}, "", Backend::kGloo});
  return all;
}

// The topology and rate that a client plans with.
struct Found {
  std::atomic<uint64_t> topology;  // its hash
  std::atomic<double> bytes_per_s;
};

class NamespacesTest : public ::testing::TestWithParam<Form> {};
INSTANTIATE_TEST_SUITE_P(Forms, NamespacesTest, ::testing::ValuesIn(forms()),
                         [](const auto& info) { return info.param.name; });

TEST_P(NamespacesTest, ValuesAndTraffic) {
  const std::vector<int>& clients = GetParam().clients_per_host;
  TESSERA_MAKE_HOSTS(hosts, static_cast<int>(clients.size()), GetParam().rate);
  std::vector<int> host_of_member;
  for (int host = 0; host < hosts.size(); ++host) {
    host_of_member.insert(host_of_member.end(), clients[host], host);
  }
  const int num_members = static_cast<int>(host_of_member.size());
  struct Sent {
    std::atomic<int64_t> bytes[std::size(kTraffic)][kMostHosts];
    Found found[kMostMembers];
  };
  Shared<Sent> sent;
  Meeting meeting(num_members);

  const auto body = [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Group group, client.group(all_devices(client)));
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", num_members}}));
    const int id = client.client_id();
    sent->found[id].topology = client.topology().hash();
    sent->found[id].bytes_per_s = 1 / client.topology().cost(LinkClass::kNetwork).seconds_per_byte;
    for (size_t t = 0; t < std::size(kTraffic); ++t) {
      TESSERA_RETURN_IF_ERROR(meeting.wait(id));
      TESSERA_ASSIGN_OR_RETURN(const int64_t before, sent_bytes());
      TESSERA_RETURN_IF_ERROR(meeting.wait(id));
      TESSERA_RETURN_IF_ERROR(
          with_context(kTraffic[t].operation({client, group, mesh}), kTraffic[t].name));
      TESSERA_RETURN_IF_ERROR(meeting.wait(id));
      TESSERA_ASSIGN_OR_RETURN(const int64_t after, sent_bytes());
      sent->bytes[t][host_of_member[id]] = after - before;
    }
    return client.shutdown();
  };
  EXPECT_THAT(
      run_on_hosts(hosts, {.clients_per_host = clients, .options = {.backend = GetParam().backend}},
                   body),
      Each(IsOk()));

  const bool is_slow = absl::string_view(GetParam().rate) == "1gbit";
  for (int member = 0; member < num_members; ++member) {
    EXPECT_EQ(sent->found[member].topology, sent->found[0].topology);
    const double rate = sent->found[member].bytes_per_s / 0.125e9;
    EXPECT_GT(rate, 0.99);
    if (is_slow) {
      EXPECT_LT(rate, 1.01);
    }
  }
  for (size_t t = 0; t < std::size(kTraffic); ++t) {
    for (int host = 0; host < hosts.size(); ++host) {
      const HostPlace place = {.L = static_cast<double>(clients[host]),
                               .P = static_cast<double>(num_members),
                               .H = static_cast<double>(hosts.size()),
                               .is_even = clients.front() == clients.back(),
                               .has_root = host == 0};
      const double times = static_cast<double>(sent->bytes[t][host]) / kBytes;
      SCOPED_TRACE(absl::StrCat(kTraffic[t].name, ", sent by host ", host, " in S"));
      EXPECT_GT(times, kTraffic[t].least(place));
      EXPECT_LT(times, kTraffic[t].most(place) * (1 + kOverhead) + kLetters);
    }
  }
}

class EnginesTest : public ::testing::TestWithParam<Backend> {};
INSTANTIATE_TEST_SUITE_P(Backends, EnginesTest,
                         ::testing::ValuesIn(kHasGloo ? std::vector{Backend::kAuto, Backend::kGloo}
                                                      : std::vector{Backend::kAuto}),
                         [](const auto& info) {
                           return info.param == Backend::kGloo ? "Gloo" : "Ucx";
                         });

// One job runs all cases. conformance_test and gloo_test run the sweeps.
TEST_P(EnginesTest, HoldTheConformanceSuite) {
  std::vector<conformance::Case> cases = conformance::all_cases();
  conformance::limit_sweeps(cases, {.f32 = 0, .other_dtypes = 0});
  std::erase_if(cases, [](const conformance::Case& c) {
    return c.num_members != 4 || conformance::is_of_ascending_order(c);
  });
  cases.push_back(conformance::random_ops_case(4, 100, 20240607));
  ASSERT_GT(cases.size(), 10u);
  TESSERA_MAKE_HOSTS(hosts, 2);
  EXPECT_THAT(run_on_hosts(hosts, {.clients_per_host = {2, 2}, .options = {.backend = GetParam()}},
                           [&](Client& client) -> Status {
                             for (const conformance::Case& c : cases) {
                               TESSERA_RETURN_IF_ERROR(with_context(
                                   run_members(client, all_devices(client), c.body), c.name));
                             }
                             return client.shutdown();
                           }),
              Each(IsOk()));
}

}  // namespace
}  // namespace tessera::testing
