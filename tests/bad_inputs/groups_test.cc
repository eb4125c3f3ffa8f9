// SPDX-License-Identifier: Apache-2.0
//
// The table of bad inputs, part 3: groups and collectives, in a job of one client. Each row is one
// input, the code and the whole message that it must give. An error that only one member can detect
// reaches all members of the operation, and the group works afterwards.
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tessera/tessera.h"
#include "tests/support/bad_inputs.h"
#include "tests/support/forked.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

using Axes = std::vector<std::string>;

// A client of four devices; a group of its first two, as both of them see it.
struct Bench {
  Client client;
  Mesh mesh;  // {x=4}
  std::vector<Group> groups;
  std::vector<float> in[2] = {std::vector<float>(16, 1.0f), std::vector<float>(16, 2.0f)};
  std::vector<float> out[2] = {std::vector<float>(16), std::vector<float>(16)};

  static StatusOr<Bench> create() {
    TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect({.num_local_devices = 4}));
    TESSERA_ASSIGN_OR_RETURN(Mesh mesh, create_mesh(client, {{"x", 4}}));
    TESSERA_ASSIGN_OR_RETURN(Group first, client.group({0, 1}, 0));
    TESSERA_ASSIGN_OR_RETURN(Group second, client.group({0, 1}, 1));
    return Bench{client, mesh, {first, second}};
  }
  absl::Span<const float> take(int member, size_t count) const {
    return absl::MakeConstSpan(in[member]).first(count);
  }
  absl::Span<float> give(int member, size_t count) {
    return absl::MakeSpan(out[member]).first(count);
  }
  // Starts an operation of both members; the verdict, which must be the same of both.
  template <class Start>
  Status both(Start start) {
    const Work works[] = {start(groups[0], 0), start(groups[1], 1)};
    const Status first = works[0].await();
    const Status second = works[1].await();
    TESSERA_REQUIRE(first == second, first.ToString(), second.ToString());
    return first;
  }
  // An exchange of four elements that both members hold, with this list.
  Status exchange(const Box& in_box, const Box& out_box, const std::vector<BoxPull>& pulls) {
    return both([&](Group& group, int k) {
      return group.exchange<float>(take(k, 4), in_box, give(k, 4), out_box, pulls);
    });
  }
};
using Row = BadInput<Bench>;

// The group of these devices, as one local device asks for it.
std::function<Status(Bench&)> group_of(std::vector<int> devices,
                                       std::optional<int> local_device = std::nullopt) {
  return [=](Bench& b) { return b.client.group(devices, local_device).status(); };
}

// An operation that both members start, as start(bench, group, member).
template <class Start>
std::function<Status(Bench&)> of_both(Start start) {
  return [=](Bench& b) {
    return b.both([&](Group& group, int member) { return start(b, group, member); });
  };
}

const Box kFour = {{0}, {4}};

const Row kGroupRows[] = {
    {"no_devices", kInvalid, "a group of no devices; name at least one", group_of({}, 0)},
    {"device_9_of_4", kInvalid, "device 9 does not exist; the job has devices 0 to 3",
     group_of({0, 9}, 0)},
    {"device_minus_one", kInvalid, "device -1 does not exist; the job has devices 0 to 3",
     group_of({0, -1}, 0)},
    {"device_twice", kInvalid, "device 0 appears twice in a group; name each device once",
     group_of({0, 0}, 0)},
    {"which_local_device", kInvalid,
     "group of devices 0, 1 has 2 local devices of client 0; name one local device that belongs to "
     "it",
     group_of({0, 1})},
    {"local_device_outside", kInvalid,
     "group of devices 0, 1 has 0 devices with local ordinal 3 of client 0; name one local device "
     "that belongs to it",
     group_of({0, 1}, 3)},
    {"local_device_minus_one", kInvalid,
     "group of devices 0, 1 has 0 devices with local ordinal -1 of client 0; name one local device "
     "that belongs to it",
     group_of({0, 1}, -1)},
    {"all_devices_of_four_local_ones", kInvalid,
     "client 0 has 4 local devices, and a Group is one member; call groups() for the Group of each",
     [](Bench& b) { return b.client.group().status(); }},
    {"groups_of_no_devices", kInvalid, "a group of no devices; name at least one",
     [](Bench& b) { return b.client.groups({}).status(); }},
    {"groups_of_device_9", kInvalid, "device 9 does not exist; the job has devices 0 to 3",
     [](Bench& b) {
       return b.client.groups({0, 9}).status();
     }},
    {"mesh_axis_q", kInvalid, "mesh {x=4} has no axis \"q\"; it has \"x\"",
     [](Bench& b) { return b.client.group(b.mesh, Axes{"q"}, 0).status(); }},
    {"mesh_axis_twice", kInvalid, "a group of mesh {x=4} names axis \"x\" twice; name it once",
     [](Bench& b) {
       return b.client.group(b.mesh, Axes{"x", "x"}, 0).status();
     }},
    {"mesh_local_device_7", kInvalid, "local device 7 does not exist; client 0 has 0 to 3",
     [](Bench& b) { return b.client.group(b.mesh, Axes{"x"}, 7).status(); }},
    {"mesh_local_device_minus_one", kInvalid, "local device -1 does not exist; client 0 has 0 to 3",
     [](Bench& b) { return b.client.group(b.mesh, Axes{"x"}, -1).status(); }},
    {"mesh_without_the_device", kInvalid,
     "device 0 does not belong to mesh {y=2} on 2,3; name a local device that does",
     [](Bench& b) { return b.client.group(*Mesh::parse("{y=2} on 2,3"), Axes{"y"}, 0).status(); }},
    {"mesh_larger_than_the_job", kInvalid, "device 4 does not exist; the job has devices 0 to 3",
     [](Bench& b) { return b.client.group(*Mesh::parse("{y=9}"), Axes{"y"}, 0).status(); }},
};

const Row kCollectiveRows[] = {
    {"in_4_out_3", kInvalid,
     "all_reduce sum f32 of 4 elements on devices 0, 1: out has 3 elements, and needs 4",
     of_both([](Bench& b, Group& g, int k) {
       return g.all_reduce<float>(b.take(k, 4), b.give(k, 3), ReduceOp::kSum);
     })},
    {"reduction_out_of_range", kInvalid,
     "all_reduce unknown f32 of 4 elements on devices 0, 1: ReduceOp(17) is not a reduction; use "
     "an enumerator of ReduceOp, kSum (0) to kAvg (4)",
     of_both([](Bench& b, Group& g, int k) {
       return g.all_reduce<float>(b.take(k, 4), b.give(k, 4), static_cast<ReduceOp>(17));
     })},
    {"null_in_of_4", kInvalid,
     "all_reduce sum f32 of 4 elements on devices 0, 1: in is null and has 4 elements; pass "
     "memory, or 0 elements",
     of_both([](Bench& b, Group& g, int k) {
       return g.all_reduce<float>(absl::Span<const float>(nullptr, 4), b.give(k, 4),
                                  ReduceOp::kSum);
     })},
    {"null_in_of_one_member", kInvalid,
     "all_reduce sum f32 of 4 elements on devices 0, 1: in is null and has 4 elements; pass "
     "memory, or 0 elements",
     of_both([](Bench& b, Group& g, int k) {
       return g.all_reduce<float>(k == 0 ? absl::Span<const float>(nullptr, 4) : b.take(k, 4),
                                  b.give(k, 4), ReduceOp::kSum);
     })},
    {"null_out_of_4", kInvalid,
     "all_reduce sum f32 of 4 elements on devices 0, 1: out is null and has 4 elements; pass "
     "memory, or 0 elements",
     of_both([](Bench& b, Group& g, int k) {
       return g.all_reduce<float>(b.take(k, 4), absl::Span<float>(nullptr, 4), ReduceOp::kSum);
     })},
    {"null_in_of_a_send", kInvalid,
     "send/recv f32 of 4 elements on devices 0, 1: in is null and has 4 elements; pass memory, or "
     "0 elements",
     [](Bench& b) {
       const Work sent = b.groups[0].send<float>(absl::Span<const float>(nullptr, 4), 1);
       const Work received = b.groups[1].recv<float>(b.give(1, 4), 0);
       const Status status = received.await();
       TESSERA_REQUIRE(sent.await() == status, sent.await().ToString(), status.ToString());
       return status;
     }},
    {"null_out_of_a_recv", kInvalid,
     "send/recv f32 of 4 elements on devices 0, 1: out is null and has 4 elements; pass memory, or "
     "0 elements",
     [](Bench& b) {
       const Work sent = b.groups[0].send<float>(b.take(0, 4), 1);
       const Work received = b.groups[1].recv<float>(absl::Span<float>(nullptr, 4), 0);
       const Status status = received.await();
       TESSERA_REQUIRE(sent.await() == status, sent.await().ToString(), status.ToString());
       return status;
     }},
    {"bytes_past_64_bits", kInvalid,
     "all_reduce sum f32 of 4611686018427387904 elements on devices 0, 1: in has "
     "4611686018427387904 elements of f32, more than 2^63 - 1 bytes; pass the span of memory that "
     "exists",
     [](Bench& b) {
       // A span may say so, and no memory has so many elements.
       const absl::Span<const float> in(b.in[0].data(), size_t{1} << 62);
       const absl::Span<float> out(b.out[0].data(), size_t{1} << 62);
       return b.both([&](Group& g, int) { return g.all_reduce<float>(in, out, ReduceOp::kSum); });
     }},
    {"reduction_9", kInvalid,
     "all_reduce unknown f32 of 4 elements on devices 0, 1: ReduceOp(9) is not a reduction; use an "
     "enumerator of ReduceOp, kSum (0) to kAvg (4)",
     of_both([](Bench& b, Group& g, int k) {
       return g.all_reduce<float>(b.take(k, 4), b.give(k, 4), static_cast<ReduceOp>(9));
     })},
    {"sizes_of_members_differ", kInvalid,
     "all_reduce sum f32 of 4 elements on devices 0, 1: count differs between clients: client 0 "
     "(...) device 0 has 4, client 0 (...) device 1 has 5; it is operation 1 of the group; make "
     "the same call on every client",
     of_both([](Bench& b, Group& g, int k) {
       return g.all_reduce<float>(b.take(k, 4 + k), b.give(k, 4 + k), ReduceOp::kSum);
     })},
    {"roots_of_members_differ", kInvalid,
     "broadcast f32 of 4 elements on devices 0, 1: root differs between clients: client 0 (...) "
     "device 0 has 0, client 0 (...) device 1 has 1; it is operation 1 of the group; make the same "
     "call on every client",
     [](Bench& b) {
       return b.both(
           [&](Group& g, int k) { return g.broadcast<float>(b.take(k, 4), b.give(k, 4), k); });
     }},
    {"root_2_of_2", kInvalid,
     "reduce sum f32 of 4 elements on devices 0, 1: root 2 is not a member; the group has 0 to 1",
     of_both([](Bench& b, Group& g, int k) {
       return g.reduce<float>(b.take(k, 4), b.give(k, 4), ReduceOp::kSum, 2);
     })},
    {"root_minus_one", kInvalid,
     "broadcast f32 of 4 elements on devices 0, 1: root -1 is not a member; the group has 0 to 1",
     [](Bench& b) {
       return b.both(
           [&](Group& g, int k) { return g.broadcast<float>(b.take(k, 4), b.give(k, 4), -1); });
     }},
    {"overlap", kInvalid,
     "all_reduce sum f32 of 4 elements on devices 0, 1: in and out of member 0 overlap; only "
     "exactly in place is allowed",
     of_both([](Bench& b, Group& g, int k) {
       return g.all_reduce<float>(b.take(k, 4), absl::MakeSpan(b.in[k]).subspan(1, 4),
                                  ReduceOp::kSum);
     })},
    {"out_of_7_for_all_gather", kInvalid,
     "all_gather f32 of 7 elements on devices 0, 1: out has 7 elements, and needs 8",
     [](Bench& b) {
       return b.both(
           [&](Group& g, int k) { return g.all_gather<float>(b.take(k, 4), b.give(k, 7)); });
     }},
    {"three_counts_of_two", kInvalid,
     "all_gather f32 of 8 elements on devices 0, 1: counts has 3 entries, and the group has 2 "
     "members; give one for each",
     of_both([](Bench& b, Group& g, int k) {
       return g.all_gather<float>(b.take(k, 4), b.give(k, 8), {4, 4, 0});
     })},
    {"negative_count", kInvalid,
     "all_gather f32 of 8 elements on devices 0, 1: counts[1] is -4; a count is 0 or more",
     of_both([](Bench& b, Group& g, int k) {
       return g.all_gather<float>(b.take(k, 4), b.give(k, 8), {12, -4});
     })},
    {"counts_past_64_bits", kInvalid,
     "all_gather f32 of 8 elements on devices 0, 1: counts 9223372036854775807, 4 are more "
     "elements than a 64-bit integer counts; use smaller counts",
     of_both([](Bench& b, Group& g, int k) {
       return g.all_gather<float>(b.take(k, 4), b.give(k, 8), {kMax, 4});
     })},
    {"in_of_7_for_reduce_scatter", kInvalid,
     "reduce_scatter sum f32 of 7 elements on devices 0, 1: in has 7 elements, and needs 8",
     of_both([](Bench& b, Group& g, int k) {
       return g.reduce_scatter<float>(b.take(k, 7), b.give(k, 4), ReduceOp::kSum);
     })},
    {"counts_of_a_pair_differ", kInvalid,
     "all_to_all f32 on devices 0, 1: member 0 sends 2 elements to member 0, which expects 1; make "
     "the counts of both equal",
     of_both([](Bench& b, Group& g, int k) {
       return g.all_to_all<float>(b.take(k, 4), b.give(k, 4), {2, 2}, {1, 3});
     })},
    {"in_of_3_at_the_root_of_a_scatter", kInvalid,
     "scatter f32 on devices 0, 1: in has 3 elements, and needs 4",
     [](Bench& b) {
       return b.both(
           [&](Group& g, int k) { return g.scatter<float>(b.take(k, 3), b.give(k, 2), 0); });
     }},
    {"all_to_all_of_7", kInvalid,
     "all_to_all f32 of 7 elements on devices 0, 1: in has 7 elements, and needs 6",
     [](Bench& b) {
       return b.both(
           [&](Group& g, int k) { return g.all_to_all<float>(b.take(k, 7), b.give(k, 7)); });
     }},
    {"send_to_member_5", kInvalid,
     "send/recv f32 of 2 elements on devices 0, 1: member 0 cannot send to member 5; name another "
     "member, 0 to 1",
     [](Bench& b) { return b.groups[0].send<float>(b.take(0, 2), 5).await(); }},
    {"send_to_member_minus_one", kInvalid,
     "send/recv f32 of 2 elements on devices 0, 1: member 0 cannot send to member -1; name another "
     "member, 0 to 1",
     [](Bench& b) { return b.groups[0].send<float>(b.take(0, 2), -1).await(); }},
    {"send_of_2_to_a_recv_of_3", kInvalid,
     "send/recv f32 of 2 elements on devices 0, 1: count differs between clients: client 0 (...) "
     "device 0 has 2, client 0 (...) device 1 has 3; it is operation 1 of the group; make the same "
     "call on every client",
     [](Bench& b) {
       const Work sent = b.groups[0].send<float>(b.take(0, 2), 1);
       const Work received = b.groups[1].recv<float>(b.give(1, 3), 0);
       const Status status = received.await();
       TESSERA_REQUIRE(sent.await() == status, sent.await().ToString(), status.ToString());
       return status;
     }},
    {"send_to_itself", kInvalid,
     "send/recv f32 of 2 elements on devices 0, 1: member 0 cannot send to member 0; name another "
     "member, 0 to 1",
     [](Bench& b) { return b.groups[0].send<float>(b.take(0, 2), 0).await(); }},
    {"recv_from_minus_one", kInvalid,
     "send/recv f32 of 2 elements on devices 0, 1: member 0 cannot receive from member -1; name "
     "another member, 0 to 1",
     [](Bench& b) { return b.groups[0].recv<float>(b.give(0, 2), -1).await(); }},
    {"pull_from_member_2", kInvalid,
     "exchange f32 on devices 0, 1: a pull names member 2; the group has 0 to 1",
     [](Bench& b) {
       return b.exchange(kFour, kFour, {{2, kFour, kFour}});
     }},
    {"pull_from_member_minus_one", kInvalid,
     "exchange f32 on devices 0, 1: a pull names member -1; the group has 0 to 1",
     [](Bench& b) {
       return b.exchange(kFour, kFour, {{-1, kFour, kFour}});
     }},
    {"pull_of_another_rank", kInvalid,
     "exchange f32 on devices 0, 1: box [0:2, 0:2] is not inside both its source [0:2, 0:2] and "
     "its target [0:4]",
     [](Bench& b) {
       const Box square = {{0, 0}, {2, 2}};
       return b.exchange(kFour, kFour, {{0, square, square}});
     }},
    {"box_of_negative_size", kInvalid,
     "exchange f32 on devices 0, 1: shape [-4] has size -4 in dim 0; a size is 0 or more",
     [](Bench& b) {
       return b.exchange(kFour, kFour, {{0, Box{{0}, {-4}}, kFour}});
     }},
    {"box_without_offsets", kInvalid,
     "exchange f32 on devices 0, 1: a box has 0 offsets and 1 sizes; give one of each for every "
     "dim",
     [](Bench& b) {
       return b.exchange(Box{{}, {4}}, kFour, {});
     }},
    {"box_of_5_in_4", kInvalid, "exchange f32 on devices 0, 1: in has 4 elements, and needs 5",
     [](Bench& b) {
       return b.exchange(Box{{0}, {5}}, kFour, {});
     }},
    {"box_that_ends_past_64_bits", kInvalid,
     "exchange f32 on devices 0, 1: a box has offset 9223372036854775806 and size 4 in dim 0, "
     "whose sum exceeds 64 bits; use a smaller offset",
     [](Bench& b) {
       return b.exchange(kFour, Box{{kMax - 1}, {4}}, {});
     }},
    {"box_of_elements_past_64_bits", kInvalid,
     "exchange f32 on devices 0, 1: shape [1099511627776, 1099511627776] has more elements than a "
     "64-bit integer counts; use smaller sizes",
     [](Bench& b) {
       return b.exchange(Box{{0, 0}, {int64_t{1} << 40, int64_t{1} << 40}}, kFour, {});
     }},
    {"box_of_bytes_past_64_bits", kInvalid,
     "exchange f32 on devices 0, 1: shape [4611686018427387904] of f32 has more than 2^63 - 1 "
     "bytes; give it fewer elements",
     [](Bench& b) {
       const Box large = {{0}, {int64_t{1} << 62}};
       return b.exchange(kFour, kFour, {{0, large, kFour}});
     }},
    {"pull_outside_of_out", kInvalid,
     "exchange f32 on devices 0, 1: box [2:6] is not inside both its source [0:8] and its target "
     "[0:4]",
     [](Bench& b) {
       return b.exchange(kFour, kFour, {{0, Box{{0}, {8}}, Box{{2}, {4}}}});
     }},
    {"a_box_far_beyond_its_source", kInvalid,
     "exchange f32 on devices 0, 1: member 1 holds 4 elements, and the pull says it holds "
     "[0:2199023255552]; give the box that the member passed as its own",
     [](Bench& b) {
       const Box far = {{int64_t{1} << 40}, {4}};
       return b.exchange(kFour, far, {{1, Box{{0}, {int64_t{1} << 41}}, far}});
     }},
    {"a_source_that_holds_less", kInvalid,
     "exchange f32 on devices 0, 1: member 0 holds 4 elements, and the pull says it holds "
     "[0:1000000]; give the box that the member passed as its own",
     [](Bench& b) {
       return b.exchange(kFour, kFour, {{0, Box{{0}, {1000000}}, kFour}});
     }},
};

class BadInputTest : public ::testing::TestWithParam<Row> {};

TEST_P(BadInputTest, IsRefused) {
  TESSERA_ASSERT_OK_AND_ASSIGN(Bench bench, Bench::create());
  EXPECT_THAT(expect_refused(GetParam(), GetParam().call(bench)), IsOk());
  EXPECT_THAT(bench.both([&](Group& g, int k) {
    return g.all_reduce<float>(bench.take(k, 4), bench.give(k, 4), ReduceOp::kSum);
  }),
              IsOk());
  EXPECT_EQ(bench.out[0][3], 3.0f);
  EXPECT_EQ(bench.out[1][3], 3.0f);
}
INSTANTIATE_TEST_SUITE_P(Groups, BadInputTest, ::testing::ValuesIn(kGroupRows),
                         bad_input_name<Bench>);
INSTANTIATE_TEST_SUITE_P(Collectives, BadInputTest, ::testing::ValuesIn(kCollectiveRows),
                         bad_input_name<Bench>);

// Null spans of no elements are legal everywhere.
TEST(GroupTest, NullSpansOfNoElements) {
  TESSERA_ASSERT_OK_AND_ASSIGN(Bench bench, Bench::create());
  const absl::Span<const float> in;
  const absl::Span<float> out;
  EXPECT_THAT(
      bench.both([&](Group& g, int) { return g.all_reduce<float>(in, out, ReduceOp::kSum); }),
      IsOk());
  EXPECT_THAT(bench.both([&](Group& g, int) { return g.all_gather<float>(in, out); }), IsOk());
  EXPECT_THAT(bench.both([&](Group& g, int) { return g.all_to_all<float>(in, out); }), IsOk());
  EXPECT_THAT(bench.both([&](Group& g, int) { return g.broadcast<float>(in, out, 1); }), IsOk());
}

// client.group(mesh, axes, device): the devices that differ only along these axes, in mesh order.
TEST(GroupTest, AlongAxesOfAMesh) {
  TESSERA_ASSERT_OK_AND_ASSIGN(Client client, Client::connect({.num_local_devices = 6}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh,
                               create_mesh(client, {{"x", 2}, {"y", 3}}, {5, 4, 3, 2, 1, 0}));
  struct Case {
    Axes axes;
    int local_device;
    std::vector<int> device_ids;
    int position;
  };
  const Case cases[] = {
      {{"x"}, 5, {5, 2}, 0},    {{"x"}, 1, {4, 1}, 1},
      {{"y"}, 0, {2, 1, 0}, 2}, {{"y", "x"}, 3, {5, 4, 3, 2, 1, 0}, 2},
      {{}, 4, {4}, 0},
  };
  for (const Case& c : cases) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const Group group, client.group(mesh, c.axes, c.local_device));
    EXPECT_THAT(group.device_ids(), ::testing::ElementsAreArray(c.device_ids));
    EXPECT_EQ(group.position(), c.position);
  }
  // Both rows of the mesh add up by themselves.
  std::vector<Work> works;
  std::vector<int32_t> sums(6, 0);
  std::vector<int32_t> terms = {1, 2, 4, 8, 16, 32};
  for (int device = 0; device < 6; ++device) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const Group row, client.group(mesh, Axes{"y"}, device));
    works.push_back(row.all_reduce<int32_t>(absl::MakeConstSpan(&terms[device], 1),
                                            absl::MakeSpan(&sums[device], 1), ReduceOp::kSum));
  }
  for (const Work& work : works) EXPECT_THAT(work.await(), IsOk());
  EXPECT_THAT(sums, ::testing::ElementsAre(7, 7, 7, 56, 56, 56));
}

// A slice of a live mesh holds tensors, relayouts them, and has barriers of its own.
TEST(MeshTest, ALiveSliceHoldsTensors) {
  TESSERA_ASSERT_OK_AND_ASSIGN(Client client, Client::connect({.num_local_devices = 6}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, create_mesh(client, {{"x", 2}, {"y", 3}}));
  for (int64_t row = 0; row < 2; ++row) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh slice, mesh.slice({{"x", row}}));
    const DTensor split = iota<int32_t>({7, 3}, Layout::parse(slice, "[y, -]"));
    EXPECT_EQ(split.num_local_shards(), 3);
    const DTensor turned = relayout(split, Layout::parse(slice, "[-, y]"));
    TESSERA_ASSERT_OK_AND_ASSIGN(const ShardView<int32_t> shard, turned.shard<int32_t>(1));
    EXPECT_EQ(shard.box, (Box{{0, 1}, {7, 1}}));
    EXPECT_THAT(shard.data, ::testing::ElementsAre(1, 4, 7, 10, 13, 16, 19));
    EXPECT_THAT(slice.barrier("slice"), IsOk());
    // To the other slice, and to the whole mesh.
    TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh other, mesh.slice({{"x", 1 - row}}));
    for (const StatusOr<Layout>& target :
         {Layout::parse(other, "[-, y]"), Layout::parse(mesh, "[x, y]")}) {
      TESSERA_ASSERT_OK_AND_ASSIGN(const HostTensor<int32_t> host,
                                   relayout(turned, target).to_host<int32_t>());
      for (int i = 0; i < 21; ++i) ASSERT_EQ(host.data[i], i);
    }
  }
}

// The client's timeout is the deadline of every collective: the error names a member that does not
// arrive.
TEST(ClientTest, CollectiveTimeoutIsADeadlineOnCpus) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      Client client,
      Client::connect({.num_local_devices = 2, .collective_timeout = absl::Milliseconds(50)}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Group group, client.group({0, 1}, 0));
  std::vector<float> in(4, 1.0f), out(4);
  const Status status = group.all_reduce<float>(in, absl::MakeSpan(out), ReduceOp::kSum).await();
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kDeadlineExceeded, ::testing::HasSubstr("in 50 ms")));
}

// shutdown(timeout) with work pending that can never end: it says so, and the work is Cancelled.
TEST(ClientTest, ShutdownWithWorkPendingCancelsIt) {
  const std::pair<absl::Duration, const char*> cases[] = {
      {absl::Milliseconds(50), "work was still pending after 50 ms and was cancelled"},
      {absl::ZeroDuration(),
       "the timeout is 0 or had already passed: work was still pending and was cancelled"}};
  for (const auto& [timeout, text] : cases) {
    TESSERA_ASSERT_OK_AND_ASSIGN(Client client, Client::connect({.num_local_devices = 2}));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Group group, client.group({0, 1}, 0));
    std::vector<float> in(4, 1.0f), out(4);
    const Work work = group.all_reduce<float>(in, absl::MakeSpan(out), ReduceOp::kSum);
    EXPECT_THAT(client.shutdown(timeout), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                                   absl::StrCat("shutdown of client 0: ", text)));
    EXPECT_THAT(work.await(), StatusIs(absl::StatusCode::kCancelled));
    EXPECT_THAT(client.shutdown(), IsOk());
  }
}

}  // namespace
}  // namespace tessera::testing
