// SPDX-License-Identifier: Apache-2.0
//
// Errors: every message of call.cc and of a group whose members disagree or stay away. All members
// get one status, memory is not touched, and the group works afterwards.
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "collectives/testing/conformance.h"
#include "collectives/testing/conformance_values.h"
#include "collectives/testing/start_operation.h"

namespace tessera::conformance {
namespace {

using Parts = std::vector<std::string>;

// A call that fails for all members. `start` is given memory of 8 elements for in and out.
struct BadCall {
  std::string name;
  int num_members;
  std::function<Work(const Member&, absl::Span<const float> in, absl::Span<float> out)> start;
  Parts parts;
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
};

Case bad_call_case(BadCall bad) {
  const int n = bad.num_members;
  return {bad.name, n, [bad = std::move(bad)](const Member& m) -> Status {
            Values<float> in(8, 1.0f), out(8, 7.0f);
            const Status status = bad.start(m, in.in(), out.out()).await();
            TESSERA_RETURN_IF_ERROR(expect_error(status, bad.code, bad.parts));
            TESSERA_RETURN_IF_ERROR(expect_works(m.group));
            TESSERA_RETURN_IF_ERROR(expect_same_text(m.group, status.message()));
            TESSERA_RETURN_IF_ERROR(expect_equal<float>(out.in(), Values<float>(8, 7.0f), "out"));
            // Many wrong calls in a row, none awaited in between: no member is left behind.
            std::vector<Work> works;
            for (int k = 0; k < 40; ++k) works.push_back(bad.start(m, in.in(), out.out()));
            Status first;
            for (const Work& work : works) {  // all of them: they hold the memory of this frame
              const Status expected = expect_error(work.await(), bad.code, bad.parts);
              if (first.ok()) first = expected;
            }
            TESSERA_RETURN_IF_ERROR(first);
            return expect_works(m.group);
          }};
}

constexpr ReduceOp kSum = ReduceOp::kSum;
using In = absl::Span<const float>;
using Out = absl::Span<float>;

Work reduce_boxes(const Group& group, In in, Out out, const Box& box, std::vector<BoxPull> pulls) {
  const BoxExchange boxes = {box, box, std::move(pulls)};
  return internal::start_operation(
      group, {.kind = OpKind::kReduceBoxes, .dtype = DType::kFloat32, .boxes = &boxes},
      {reinterpret_cast<const std::byte*>(in.data()), static_cast<int64_t>(in.size()),
       reinterpret_cast<std::byte*>(out.data()), static_cast<int64_t>(out.size())});
}

// Errors that each member can detect by itself.
std::vector<BadCall> wrong_arguments() {
  const Box box8 = {{0}, {8}};
  const Box box4 = {{0}, {4}};
  const Box square = {{0, 0}, {2, 4}};
  return {
      {"all_reduce_out_size",
       2,
       [](const Member& m, In in, Out out) {
         return m.group.all_reduce<float>(in, out.first(3), kSum);
       },
       {"all_reduce sum f32 of 8 elements on devices 0, 1: ", "out has 3 elements, and needs 8"}},
      {"reduce_out_size_at_root",
       2,
       [](const Member& m, In in, Out out) {
         return m.group.reduce<float>(in, out.first(3), kSum, 0);
       },
       {"reduce sum f32", "out has 3 elements, and needs 8"}},
      {"broadcast_in_size_at_root",
       2,
       [](const Member& m, In in, Out out) {
         return m.group.broadcast<float>(in.first(5), out, 1);
       },
       {"broadcast f32", "in has 5 elements, and needs 8"}},
      {"all_gather_out_size",
       3,
       [](const Member& m, In in, Out out) { return m.group.all_gather<float>(in.first(2), out); },
       {"all_gather f32", "out has 8 elements, and needs 6"}},
      {"all_gather_in_size",
       2,
       [](const Member& m, In in, Out out) {
         return m.group.all_gather<float>(in.first(2), out, {4, 4});
       },
       {"in has 2 elements, and needs 4"}},
      {"reduce_scatter_in_size",
       3,
       [](const Member& m, In in, Out out) {
         return m.group.reduce_scatter<float>(in, out.first(2), kSum);
       },
       {"reduce_scatter sum f32", "in has 8 elements, and needs 6"}},
      {"reduce_scatter_out_size",
       2,
       [](const Member& m, In in, Out out) {
         return m.group.reduce_scatter<float>(in, out.first(3), kSum, {4, 4});
       },
       {"out has 3 elements, and needs 4"}},
      {"all_to_all_not_divisible",
       3,
       [](const Member& m, In in, Out out) { return m.group.all_to_all<float>(in, out); },
       {"all_to_all f32", "in has 8 elements, and needs 6"}},
      {"all_to_all_out_size",
       2,
       [](const Member& m, In in, Out out) { return m.group.all_to_all<float>(in, out.first(7)); },
       {"out has 7 elements, and needs 8"}},
      {"gather_in_size",
       2,
       [](const Member& m, In in, Out out) {
         return m.group.gather<float>(in.first(3), out, 0, {4, 4});
       },
       {"gather f32", "in has 3 elements, and needs 4"}},
      {"gather_out_size_at_root",
       2,
       [](const Member& m, In in, Out out) {
         return m.group.gather<float>(in.first(3), out, 0, {3, 3});
       },
       {"out has 8 elements, and needs 6"}},
      {"scatter_in_size_at_root",
       2,
       [](const Member& m, In in, Out out) {
         return m.group.scatter<float>(in, out.first(3), 0, {3, 3});
       },
       {"scatter f32", "in has 8 elements, and needs 6"}},
      {"scatter_out_size",
       2,
       [](const Member& m, In in, Out out) {
         return m.group.scatter<float>(in, out.first(3), 0, {4, 4});
       },
       {"out has 3 elements, and needs 4"}},
      {"too_few_counts",
       3,
       [](const Member& m, In in, Out out) {
         return m.group.all_gather<float>(in.first(4), out, {4, 4});
       },
       {"counts has 2 entries, and the group has 3 members; give one for each"}},
      {"negative_count",
       2,
       [](const Member& m, In in, Out out) {
         return m.group.all_gather<float>(in.first(4), out, {9, -1});
       },
       {"counts[1] is -1; a count is 0 or more"}},
      {"negative_recv_count",
       2,
       [](const Member& m, In in, Out out) {
         return m.group.all_to_all<float>(in, out, {4, 4}, {9, -1});
       },
       {"counts[1] is -1; a count is 0 or more"}},
      {"counts_beyond_int64",
       2,
       [](const Member& m, In in, Out out) {
         return m.group.all_gather<float>(in, out, {INT64_MAX, INT64_MAX});
       },
       {"counts", "more elements than a 64-bit integer counts"}},
      {"root_too_large",
       3,
       [](const Member& m, In in, Out out) { return m.group.broadcast<float>(in, out, 3); },
       {"root 3 is not a member; the group has 0 to 2"}},
      {"root_negative",
       3,
       [](const Member& m, In in, Out out) { return m.group.reduce<float>(in, out, kSum, -1); },
       {"root -1 is not a member; the group has 0 to 2"}},
      {"exchange_in_size",
       2,
       [=](const Member& m, In in, Out out) {
         return m.group.exchange<float>(in, box4, out, box8, {});
       },
       {"in has 8 elements, and needs 4"}},
      {"exchange_source_outside",
       2,
       [=](const Member& m, In in, Out out) {
         return m.group.exchange<float>(in, box8, out, box8, {{2, box8, box4}});
       },
       {"a pull names member 2; the group has 0 to 1"}},
      {"exchange_box_outside_its_source",
       2,
       [=](const Member& m, In in, Out out) {
         return m.group.exchange<float>(in, box8, out, box8, {{0, box4, box8}});
       },
       {"box [0:8] is not inside both its source [0:4] and its target [0:8]"}},
      {"exchange_box_outside_its_target",
       2,
       [=](const Member& m, In in, Out out) {
         return m.group.exchange<float>(in, box8, out.first(4), box4, {{0, box8, box8}});
       },
       {"box [0:8] is not inside both its source [0:8] and its target [0:4]"}},
      {"exchange_ranks_differ",
       2,
       [=](const Member& m, In in, Out out) {
         return m.group.exchange<float>(in, box8, out, square, {{0, box8, box4}});
       },
       {"box [0:4] is not inside both its source [0:8] and its target [0:2, 0:4]"}},
      {"exchange_negative_size",
       2,
       [=](const Member& m, In in, Out out) {
         return m.group.exchange<float>(in, {{0}, {-8}}, out, box8, {});
       },
       {"[-8]", "size"}},
      {"exchange_offsets_and_sizes_differ",
       2,
       [=](const Member& m, In in, Out out) {
         return m.group.exchange<float>(in, {{0, 0}, {8}}, out, box8, {});
       },
       {"a box has 2 offsets and 1 sizes"}},
      {"reduce_boxes_members",
       3,
       [=](const Member& m, In in, Out out) {
         return reduce_boxes(m.group, in, out, box8, {{0, box8, box8}});
       },
       {"reduce_boxes sum f32", "boxes of 1 members given, and the group has 3"}},
  };
}

// Memory of in and out that overlaps, and not exactly in place.
std::vector<BadCall> overlaps() {
  const Box box8 = {{0}, {8}};
  return {
      {"all_gather_overlap",
       2,
       [](const Member& m, In, Out out) {
         return m.group.all_gather<float>(out.subspan(2, 4), out);
       },
       {"in and out of member ", " overlap; only exactly in place is allowed"}},
      {"all_gather_in_place_of_parts_that_differ",
       2,
       [](const Member& m, In, Out out) { return m.group.all_gather<float>(out.first(7)); },
       {"out has 7 elements, and needs 6"}},
      {"reduce_scatter_to_the_front",
       2,
       [](const Member& m, In, Out out) {
         return m.group.reduce_scatter<float>(out, out.first(4), kSum);
       },
       {"in and out of member 1 overlap; only exactly in place is allowed"}},
      {"all_to_all_in_place",
       2,
       [](const Member& m, In, Out out) { return m.group.all_to_all<float>(out, out); },
       {"in and out of member ", " overlap; use separate memory"}},
      {"exchange_in_place",
       2,
       [=](const Member& m, In, Out out) {
         return m.group.exchange<float>(out, box8, out, box8, {});
       },
       {"in and out of member ", " overlap; use separate memory"}},
  };
}

// Errors that only the comparison of all members can detect.
std::vector<BadCall> disagreements() {
  return {
      {"root_mismatch",
       2,
       [](const Member& m, In in, Out out) {
         return m.group.broadcast<float>(in, out, m.position);
       },
       {"broadcast f32 of 8 elements", "root differs between clients", "device 0 has 0",
        "device 1 has 1", "make the same call on every client"}},
      {"reduction_mismatch",
       2,
       [](const Member& m, In in, Out out) {
         return m.group.all_reduce<float>(in, out, m.position == 0 ? kSum : ReduceOp::kMax);
       },
       {"reduction differs between clients", "device 0 has sum", "device 1 has max"}},
      {"order_mismatch",
       2,
       [](const Member& m, In in, Out out) {
         return internal::start_operation(
             m.group,
             {.kind = OpKind::kAllReduce,
              .dtype = DType::kFloat32,
              .count = 8,
              .order = m.position == 0 ? ReductionOrder::kByHost : ReductionOrder::kFlat},
             {reinterpret_cast<const std::byte*>(in.data()), 8,
              reinterpret_cast<std::byte*>(out.data()), 8});
       },
       {"reduction order differs between clients", "device 0 has by_host", "device 1 has flat"}},
      {"kind_mismatch",
       3,
       [](const Member& m, In in, Out out) {
         return m.position < 2 ? m.group.all_reduce<float>(in, out, kSum)
                               : m.group.broadcast<float>(in, out, 0);
       },
       {"operation differs between clients", " has all_reduce sum f32 of 8 elements",
        "device 2 has broadcast f32 of 8 elements"}},
      {"barrier_against_collective",
       2,
       [](const Member& m, In in, Out out) {
         return m.position == 0 ? m.group.barrier() : m.group.all_reduce<float>(in, out, kSum);
       },
       {"operation differs between clients", "device 0 has barrier", "device 1 has all_reduce"}},
      {"dtype_mismatch",
       2,
       [](const Member& m, In in, Out out) {
         if (m.position == 0) return m.group.all_reduce<float>(in, out, kSum);
         return m.group.all_reduce<int32_t>({}, {}, kSum);
       },
       {"dtype differs between clients", "device 0 has f32", "device 1 has i32"}},
      {"one_member_is_wrong",
       3,
       [](const Member& m, In in, Out out) {
         return m.group.all_reduce<float>(in, m.position == 1 ? out.first(2) : out, kSum);
       },
       {"out has 2 elements, and needs 8"}},
  };
}

std::vector<BadCall> disagreements_on_counts() {
  return {
      {"all_gather_counts_mismatch",
       2,
       [](const Member& m, In in, Out out) {
         const std::vector<int64_t> counts =
             m.position == 0 ? std::vector<int64_t>{4, 4} : std::vector<int64_t>{3, 5};
         return m.group.all_gather<float>(in.first(counts[m.position]), out, counts);
       },
       {"counts differ between clients", "device 0 has 4, 4", "device 1 has 3, 5"}},
      {"equal_counts_mismatch",
       3,
       [](const Member& m, In in, Out out) {
         const size_t count = m.position == 2 ? 1 : 2;
         return m.group.scatter<float>(in.first(3 * count), out.first(count), 0);
       },
       {"counts differ between clients", " has 2, 2, 2, ", "device 2 has 1, 1, 1; "}},
      {"equal_and_other_counts_mismatch",
       2,
       [](const Member& m, In in, Out out) {
         if (m.position == 0) return m.group.all_gather<float>(in.first(4), out);
         return m.group.all_gather<float>(in.first(5), out, {3, 5});
       },
       {"counts differ between clients", "device 0 has 4, 4, ", "device 1 has 3, 5; "}},
      {"equal_and_other_parts_of_all_to_all",
       2,
       [](const Member& m, In in, Out out) {
         if (m.position == 0) return m.group.all_to_all<float>(in, out);
         return m.group.all_to_all<float>(in, out, {4, 4}, {4, 4});
       },
       {"count differs between clients", "device 0 has 8", "device 1 has 0"}},
      {"all_to_all_counts_mismatch",
       2,
       [](const Member& m, In in, Out out) {
         const std::vector<int64_t> recv = {m.position == 0 ? 4 : 3, 4};
         return m.group.all_to_all<float>(in, out.first(recv[0] + 4), {4, 4}, recv);
       },
       {"all_to_all f32", "member 0 sends 4 elements to member 1, which expects 3",
        "make the counts of both equal"}},
  };
}

// count_mismatch and broadcast_count_mismatch: the odd one passes another count than the others.
Case count_mismatch(std::string name, int n, int odd, int64_t count, int64_t odd_count,
                    bool broadcast) {
  return {std::move(name), n, [=](const Member& m) -> Status {
            const int64_t size = m.position == odd ? odd_count : count;
            Values<float> in(size, 1.0f), out(size, 7.0f);
            const Work work = broadcast ? m.group.broadcast<float>(in.in(), out.out(), 0)
                                        : m.group.all_reduce<float>(in.in(), out.out(), kSum);
            const Status status = work.await();
            TESSERA_RETURN_IF_ERROR(expect_error(
                status, absl::StatusCode::kInvalidArgument,
                // The other one named is whichever came first.
                {"count differs between clients: client ",
                 absl::StrCat("device ", odd, " has ", odd_count), absl::StrCat("has ", count)}));
            TESSERA_RETURN_IF_ERROR(
                expect_equal<float>(out.in(), Values<float>(size, 7.0f), "out is not touched"));
            TESSERA_RETURN_IF_ERROR(expect_same_text(m.group, status.message()));
            return expect_works(m.group);
          }};
}

// Member 0 makes more wrong calls than any ring of records holds, long before member 1 comes: what
// is wrong is kept for it.
Status wrong_calls_wait_for_the_late(const Member& m) {
  constexpr int kCalls = 20;
  const Values<float> in(8, 1.0f);
  Values<float> out(8, 7.0f);
  if (m.position == 1) absl::SleepFor(absl::Milliseconds(60));  // sleep: what "long" means here
  std::vector<Work> works;
  for (int k = 0; k < kCalls; ++k) {
    works.push_back(m.group.reduce<float>(in.in(), out.out(), kSum, m.position == 0 ? 5 : 0));
  }
  Status first;
  for (const Work& work : works) {  // all of them: they hold the memory of this frame
    first.Update(
        expect_error(work.await(), absl::StatusCode::kInvalidArgument, {"root 5 is not a member"}));
  }
  TESSERA_RETURN_IF_ERROR(first);
  return expect_works(m.group);
}

// Client 0 calls all_reduce then broadcast, client 1 broadcast then all_reduce.
Status swapped_order(const Member& m) {
  const Values<int32_t> in = {m.position + 1};
  Values<int32_t> out(1, -1);
  for (const int step : {0, 1}) {
    const bool reduces = step == m.position;
    const Work work = reduces ? m.group.all_reduce<int32_t>(in.in(), out.out(), kSum)
                              : m.group.broadcast<int32_t>(in.in(), out.out(), 0);
    TESSERA_RETURN_IF_ERROR(expect_error(work.await(), absl::StatusCode::kInvalidArgument,
                                         {"operation differs", "all_reduce", "broadcast"}));
  }
  TESSERA_RETURN_IF_ERROR(expect_equal<int32_t>(out.in(), {-1}, "never wrong values"));
  return expect_works(m.group);
}

// Member 2 arrives only when it knows that the others have given up.
Status late_member(const Member& m, bool comes_with_another_op) {
  const Values<int32_t> in = {m.position + 1};
  Values<int32_t> out(1, -1);
  Status status;
  const Values<uint8_t> note(1);
  if (m.position < 2) {
    const absl::Time start = steady_now();
    status = m.group.all_reduce<int32_t>(in.in(), out.out(), kSum).wait(absl::Milliseconds(500));
    const absl::Duration waited = steady_now() - start;
    TESSERA_RETURN_IF_ERROR(
        expect_error(status, absl::StatusCode::kDeadlineExceeded,
                     {"all_reduce sum i32 of 1 elements on devices 0, 1, 2: ", " arrived in ",
                      "missing client ", "which has not run any operation yet"}));
    // From when the device began the operation, which may be after the call.
    const bool says_when = absl::StrContains(status.message(), " arrived in 5") ||
                           absl::StrContains(status.message(), " arrived in 4");
    TESSERA_RETURN_IF_ERROR(expect(says_when, "says that it took 500 ms"));
    // The deadline of the other member may come first.
    TESSERA_RETURN_IF_ERROR(expect(waited >= absl::Milliseconds(300), "waits for 500 ms"));
    TESSERA_RETURN_IF_ERROR(m.group.send<uint8_t>(note.in(), 2).await());
  } else {
    Values<uint8_t> received(1);
    TESSERA_RETURN_IF_ERROR(m.group.recv<uint8_t>(received.out(), 0).await());
    TESSERA_RETURN_IF_ERROR(m.group.recv<uint8_t>(received.out(), 1).await());
    if (!comes_with_another_op) {
      status = m.group.all_reduce<int32_t>(in.in(), out.out(), kSum).await();
      TESSERA_RETURN_IF_ERROR(expect_error(status, absl::StatusCode::kDeadlineExceeded, {}));
    }
  }
  if (comes_with_another_op) return m.group.barrier().await();
  TESSERA_RETURN_IF_ERROR(expect_works(m.group));
  TESSERA_RETURN_IF_ERROR(expect_equal<int32_t>(out.in(), {-1}, "out is not touched"));
  return expect_same_text(m.group, status.message());
}

// Two groups whose members wait for each other are told so, long before any deadline.
Status mutual_wait(const Member& m) {
  if (m.position == 2) return expect_works(m.group);
  TESSERA_ASSIGN_OR_RETURN(const Group forward, m.subgroup({0, 1}));
  TESSERA_ASSIGN_OR_RETURN(const Group backward, m.subgroup({1, 0}));
  // An hour is beyond the deadline of the test.
  const Status status = (m.position == 0 ? forward : backward).barrier().wait(absl::Hours(1));
  TESSERA_RETURN_IF_ERROR(expect_error(
      status, absl::StatusCode::kInvalidArgument,
      {"operations differ between clients: client ", " waits in barrier on devices ",
       "barrier on devices 0, 1", "barrier on devices 1, 0", "same order on every client"}));
  TESSERA_RETURN_IF_ERROR(expect_works(m.group));
  // The numbers of the two groups' operations are apart now: a group of the same order would not
  // do.
  const std::string text(status.message());
  Values<uint8_t> theirs(static_cast<int64_t>(text.size()));
  const absl::Span<const uint8_t> ours(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  if (m.position == 1) return m.group.send<uint8_t>(ours, 0).await();
  TESSERA_RETURN_IF_ERROR(m.group.recv<uint8_t>(theirs.out(), 1).await());
  return expect(ours == theirs.in(), "both get one text");
}

Work named_barrier(const Group& group, absl::string_view name, absl::Duration timeout) {
  return internal::start_operation(group, CollectiveSpec(), {},
                                   {.detail = absl::StrCat("\"", name, "\""),
                                    .detail_field = "name",
                                    .label = absl::StrCat("barrier \"", name, "\""),
                                    .timeout = timeout});
}

Status barrier_names_differ(const Member& m) {
  const Status status =
      named_barrier(m.group, m.position == 0 ? "ckpt" : "step", absl::Seconds(60)).await();
  TESSERA_RETURN_IF_ERROR(expect_error(
      status, absl::StatusCode::kInvalidArgument,
      {"name differs between clients", "device 0 has \"ckpt\"", "device 1 has \"step\"",
       "; it is operation ", " of the group; make the same call on every client"}));
  TESSERA_RETURN_IF_ERROR(expect_same_text(m.group, status.message()));
  return expect_works(m.group);
}

// One name on two groups that overlap: {0, 1} and {1, 2}.
Status same_barrier_on_two_groups(const Member& m) {
  if (m.position < 2) {
    TESSERA_ASSIGN_OR_RETURN(
        const Group group,
        m.subgroup(m.position == 0 ? std::vector<int>{0, 1} : std::vector<int>{1, 2}));
    const Status status = named_barrier(group, "ckpt", absl::Seconds(20)).await();
    TESSERA_RETURN_IF_ERROR(expect_error(status, absl::StatusCode::kInvalidArgument,
                                         {"operations differ between clients", "\"ckpt\""}));
    const Values<uint8_t> note(1);
    TESSERA_RETURN_IF_ERROR(m.group.send<uint8_t>(note.in(), 2).await());
  }
  if (m.position == 2) {
    // It waits for both without keeping its device, so that it takes no part in their quarrel.
    for (const int from : {0, 1}) {
      Values<uint8_t> received(1);
      TESSERA_RETURN_IF_ERROR(m.group.recv<uint8_t>(received.out(), from).await());
    }
  }
  return expect_works(m.group);
}

// The earliest deadline decides for all, whichever member has it.
Status earliest_deadline_decides(const Member& m) {
  if (m.position == 2) return absl::OkStatus();
  const Status status =
      named_barrier(m.group, "b", m.position == 0 ? absl::Seconds(60) : absl::Milliseconds(300))
          .await();
  TESSERA_RETURN_IF_ERROR(
      expect_error(status, absl::StatusCode::kDeadlineExceeded, {"barrier \"b\": ", "in 3"}));
  TESSERA_ASSIGN_OR_RETURN(const Group both, m.subgroup({0, 1}));
  return expect_same_text(both, status.message());
}

// The deadline of the second barrier counts from when the first one is over.
Status timeout_counts_from_the_start(const Member& m) {
  Values<uint8_t> note(1);
  // Does nothing else in the group meanwhile.
  if (m.position == 1) return m.group.recv<uint8_t>(note.out(), 0).await();
  constexpr absl::Duration kTimeout = absl::Milliseconds(6);
  const absl::Time start = steady_now();
  const Work works[] = {named_barrier(m.group, "a", kTimeout),
                        named_barrier(m.group, "b", kTimeout)};
  for (const Work& work : works) {
    TESSERA_RETURN_IF_ERROR(
        expect_error(work.await(), absl::StatusCode::kDeadlineExceeded, {"in 6 ms"}));
  }
  const absl::Duration taken = steady_now() - start;
  if (m.position == 0) TESSERA_RETURN_IF_ERROR(m.group.send<uint8_t>(note.in(), 1).await());
  return expect(taken >= 2 * kTimeout, "each has its time");
}

Status zero_timeout(const Member& m) {
  if (m.position == 1) return absl::OkStatus();
  const Status status = named_barrier(m.group, "b", absl::ZeroDuration()).await();
  return expect_error(status, absl::StatusCode::kDeadlineExceeded,
                      {"the timeout is 0 or had already passed: "});
}

}  // namespace

std::vector<Case> error_cases() {
  std::vector<Case> cases;
  for (BadCall& bad : wrong_arguments()) cases.push_back(bad_call_case(std::move(bad)));
  for (BadCall& bad : overlaps()) cases.push_back(bad_call_case(std::move(bad)));
  for (BadCall& bad : disagreements()) cases.push_back(bad_call_case(std::move(bad)));
  for (BadCall& bad : disagreements_on_counts()) cases.push_back(bad_call_case(std::move(bad)));
  cases.push_back(count_mismatch("count_mismatch", 2, 1, 1000, 2000, /*broadcast=*/false));
  cases.push_back(count_mismatch("broadcast_count_mismatch", 3, 2, 1000, 500, /*broadcast=*/true));
  cases.push_back({"wrong_calls_wait_for_the_late", 2, wrong_calls_wait_for_the_late});
  cases.push_back({"swapped_order", 2, swapped_order});
  cases.push_back({"late_member", 3, [](const Member& m) { return late_member(m, false); }});
  cases.push_back({"late_member_goes_on", 3, [](const Member& m) { return late_member(m, true); }});
  cases.push_back({"mutual_wait", 3, mutual_wait});
  cases.push_back({"barrier_names_differ", 2, barrier_names_differ});
  cases.push_back({"same_barrier_on_two_groups", 3, same_barrier_on_two_groups});
  cases.push_back({"earliest_deadline_decides", 3, earliest_deadline_decides});
  cases.push_back({"timeout_counts_from_the_start", 2, timeout_counts_from_the_start});
  cases.push_back({"zero_timeout", 2, zero_timeout});
  return cases;
}

}  // namespace tessera::conformance
