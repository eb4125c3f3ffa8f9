// SPDX-License-Identifier: Apache-2.0
//
// The rows of tests/facts/collectives.md, by their names.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "Eigen/Core"
#include "absl/types/span.h"
#include "collectives/testing/conformance.h"
#include "collectives/testing/conformance_values.h"

namespace tessera::conformance {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// all_reduce of one element per member; in place, it must give the same bits.
template <class T>
Case reduces(std::string name, ReduceOp op, std::vector<Values<T>> inputs, T expected) {
  const int n = static_cast<int>(inputs.size());
  return {std::move(name), n, [=](const Member& m) -> Status {
            Values<T> in(1, inputs[m.position][0]);
            Values<T> out(1);
            TESSERA_RETURN_IF_ERROR(m.group.all_reduce<T>(in.in(), out.out(), op).await());
            TESSERA_RETURN_IF_ERROR(expect_equal<T>(out.in(), {expected}, "out"));
            TESSERA_RETURN_IF_ERROR(m.group.all_reduce<T>(in.in(), in.out(), op).await());
            return expect_equal<T>(in.in(), {expected}, "in place");
          }};
}

template <class T>
Case refused(std::string name, std::vector<Values<T>> inputs) {
  const int n = static_cast<int>(inputs.size());
  return {std::move(name), n, [=](const Member& m) -> Status {
            Values<T> out(1, T(77));
            const Status status =
                m.group.all_reduce<T>(inputs[m.position].in(), out.out(), ReduceOp::kAvg).await();
            TESSERA_RETURN_IF_ERROR(
                expect_error(status, absl::StatusCode::kInvalidArgument, {"avg", "integer"}));
            TESSERA_RETURN_IF_ERROR(expect_equal<T>(out.in(), {T(77)}, "out is not touched"));
            TESSERA_RETURN_IF_ERROR(expect_same_text(m.group, status.message()));
            return expect_works(m.group);
          }};
}

std::vector<Case> reductions() {
  using Half = Eigen::half;
  using BFloat = Eigen::bfloat16;
  const auto half = [](float x) { return Values<Half>{Half(x)}; };
  const auto bfloat = [](float x) { return Values<BFloat>{BFloat(x)}; };
  using F32 = Values<float>;
  using F64 = Values<double>;
  using I32 = Values<int32_t>;
  using I64 = Values<int64_t>;
  using U8 = Values<uint8_t>;
  using Bool = Values<bool>;
  std::vector<Case> cases = {
      reduces<double>("sum_f64_ascending", ReduceOp::kSum, {F64{0.1}, F64{0.2}, F64{0.3}},
                      0.6000000000000001),
      reduces<int64_t>("sum_i64_beyond_f64", ReduceOp::kSum, {I64{9007199254740992}, I64{1}},
                       9007199254740993),
      reduces<int32_t>("sum_i32_wraps", ReduceOp::kSum, {I32{2147483647}, I32{1}}, INT32_MIN),
      reduces<uint8_t>("sum_u8_wraps", ReduceOp::kSum, {U8{200}, U8{100}, U8{1}}, 45),
      reduces<BFloat>("sum_bf16_rounds_once", ReduceOp::kSum,
                      {bfloat(256), bfloat(1), bfloat(1), bfloat(1)}, BFloat(260.0f)),
      reduces<float>("sum_f32_stays_f32", ReduceOp::kSum, {F32{16777216}, F32{1}, F32{1}, F32{1}},
                     16777216),
      reduces<Half>("sum_f16_overflows", ReduceOp::kSum, {half(65504), half(65504)},
                    Half(kInfinity)),
      reduces<Half>("avg_f16_does_not_overflow", ReduceOp::kAvg, {half(65504), half(65504)},
                    Half(65504.0f)),
      reduces<float>("avg_f32", ReduceOp::kAvg, {F32{1}, F32{2}, F32{4}}, 2.3333332538604736f),
      reduces<Half>("avg_f16", ReduceOp::kAvg, {half(1), half(2), half(4)}, Half(2.333984375f)),
      refused<int32_t>("avg_i32_refused", {I32{1}, I32{2}, I32{3}, I32{5}}),
      refused<uint8_t>("avg_u8_refused", {U8{255}, U8{255}}),
      reduces<float>("prod_f32", ReduceOp::kProd, {F32{1}, F32{2}, F32{3}, F32{4}}, 24),
      reduces<int32_t>("prod_i32_wraps", ReduceOp::kProd, {I32{65536}, I32{65536}}, 0),
      reduces<float>("min_f32_all_nan", ReduceOp::kMin, {F32{kNaN}, F32{kNaN}}, kNaN),
      reduces<float>("max_f32_minus_infinity", ReduceOp::kMax, {F32{-kInfinity}, F32{-5}}, -5),
      reduces<int32_t>("min_i32", ReduceOp::kMin, {I32{5}, I32{-7}, I32{3}, I32{0}}, -7),
      reduces<uint8_t>("max_u8_is_unsigned", ReduceOp::kMax, {U8{0}, U8{255}, U8{3}}, 255),
      reduces<bool>("bool_max_is_or", ReduceOp::kMax,
                    {Bool{true}, Bool{false}, Bool{false}, Bool{false}}, true),
      reduces<bool>("bool_min_is_and", ReduceOp::kMin,
                    {Bool{true}, Bool{true}, Bool{false}, Bool{true}}, false),
  };
  cases.push_back({"max_f32_signed_zeros", 2, [](const Member& m) -> Status {
                     const Values<float> in = {m.position == 0 ? -0.0f : 0.0f};
                     Values<float> out(1, 1.0f);
                     TESSERA_RETURN_IF_ERROR(
                         m.group.all_reduce<float>(in.in(), out.out(), ReduceOp::kMax).await());
                     return expect(out[0] == 0.0f, "the maximum of -0 and +0 is a zero");
                   }});
  return cases;
}

Status all_gather_variable(const Member& m) {
  const Values<int32_t> in = m.position == 0   ? Values<int32_t>{7, 8}
                             : m.position == 1 ? Values<int32_t>(0)
                                               : Values<int32_t>{9};
  Values<int32_t> out(3);
  TESSERA_RETURN_IF_ERROR(m.group.all_gather<int32_t>(in.in(), out.out(), {2, 0, 1}).await());
  return expect_equal<int32_t>(out.in(), {7, 8, 9}, "out");
}

Status reduce_scatter_i32(const Member& m) {
  Values<int32_t> in(4);
  for (int j = 0; j < 4; ++j) in[j] = m.position + j;
  Values<int32_t> out(1);
  TESSERA_RETURN_IF_ERROR(
      m.group.reduce_scatter<int32_t>(in.in(), out.out(), ReduceOp::kSum).await());
  return expect_equal<int32_t>(out.in(), {6 + 4 * m.position}, "out");
}

Status reduce_scatter_then_all_gather(const Member& m) {
  const std::vector<int64_t> counts = {334, 333, 333};
  const auto in = values_of<float>(1, m.position, 1000);
  Values<float> whole(1000), part(counts[m.position]), gathered(1000);
  TESSERA_RETURN_IF_ERROR(m.group.all_reduce<float>(in.in(), whole.out(), ReduceOp::kSum).await());
  TESSERA_RETURN_IF_ERROR(
      m.group.reduce_scatter<float>(in.in(), part.out(), ReduceOp::kSum, counts).await());
  TESSERA_RETURN_IF_ERROR(m.group.all_gather<float>(part.in(), gathered.out(), counts).await());
  return expect(std::memcmp(&whole[0], &gathered[0], 1000 * sizeof(float)) == 0,
                "reduce_scatter and all_gather give the bits of all_reduce");
}

Status all_to_all_i32(const Member& m) {
  Values<int32_t> in(4), out(4), want(4);
  for (int j = 0; j < 4; ++j) {
    in[j] = 10 * m.position + j;
    want[j] = 10 * j + m.position;
  }
  TESSERA_RETURN_IF_ERROR(m.group.all_to_all<int32_t>(in.in(), out.out()).await());
  return expect_equal<int32_t>(out.in(), want, "out");
}

Status all_to_all_variable(const Member& m) {
  const bool first = m.position == 0;
  const Values<int32_t> in = first ? Values<int32_t>{5, 6, 7} : Values<int32_t>{8};
  const std::vector<int64_t> send = first ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{0, 1};
  const std::vector<int64_t> recv = first ? std::vector<int64_t>{1, 0} : std::vector<int64_t>{2, 1};
  const Values<int32_t> want = first ? Values<int32_t>{5} : Values<int32_t>{6, 7, 8};
  Values<int32_t> out(want.size());
  TESSERA_RETURN_IF_ERROR(m.group.all_to_all<int32_t>(in.in(), out.out(), send, recv).await());
  return expect_equal<int32_t>(out.in(), want, "out");
}

Status broadcast_root_2(const Member& m) {
  const Values<int32_t> in = {m.position};
  Values<int32_t> out(1, -1);
  TESSERA_RETURN_IF_ERROR(m.group.broadcast<int32_t>(in.in(), out.out(), 2).await());
  TESSERA_RETURN_IF_ERROR(expect_equal<int32_t>(out.in(), {2}, "out"));
  return expect_equal<int32_t>(in.in(), {m.position}, "in is not written");
}

// Inputs that no member reads may have any size.
Status inputs_beside_the_root(const Member& m) {
  const Values<int32_t> in(m.position == 1 ? 3 : 100'000, m.position);
  Values<int32_t> all(3, -1), own(1, -1);
  for (int round = 0; round < 3; ++round) {
    TESSERA_RETURN_IF_ERROR(m.group.broadcast<int32_t>(in.in(), all.out(), 1).await());
    TESSERA_RETURN_IF_ERROR(m.group.scatter<int32_t>(in.in(), own.out(), 1).await());
    TESSERA_RETURN_IF_ERROR(expect_equal<int32_t>(all.in(), {1, 1, 1}, "broadcast"));
    TESSERA_RETURN_IF_ERROR(expect_equal<int32_t>(own.in(), {1}, "scatter"));
  }
  return absl::OkStatus();
}

Status reduce_root_1(const Member& m) {
  const Values<int32_t> in = {m.position + 1};
  Values<int32_t> out(1, 99);
  TESSERA_RETURN_IF_ERROR(m.group.reduce<int32_t>(in.in(), out.out(), ReduceOp::kSum, 1).await());
  // The other outputs must not be written later either.
  TESSERA_RETURN_IF_ERROR(m.group.barrier().await());
  return expect_equal<int32_t>(out.in(), {m.position == 1 ? 6 : 99}, "out");
}

Status gather_root_0(const Member& m) {
  const Values<int32_t> in(2, m.position);
  Values<int32_t> out(m.position == 0 ? 6 : 1, 99);
  TESSERA_RETURN_IF_ERROR(m.group.gather<int32_t>(in.in(), out.out(), 0).await());
  if (m.position != 0) return expect_equal<int32_t>(out.in(), {99}, "out elsewhere");
  return expect_equal<int32_t>(out.in(), {0, 0, 1, 1, 2, 2}, "out");
}

Status ring_send_recv(const Member& m) {
  const Values<int32_t> in = {m.position};
  Values<int32_t> out(1);
  const Work sent = m.group.send<int32_t>(in.in(), (m.position + 1) % 4);
  const Work received = m.group.recv<int32_t>(out.out(), (m.position + 3) % 4);
  TESSERA_RETURN_IF_ERROR(received.await());
  TESSERA_RETURN_IF_ERROR(sent.await());
  return expect_equal<int32_t>(out.in(), {(m.position + 3) % 4}, "out");
}

Status zero_elements_null_pointers(const Member& m) {
  const Group& g = m.group;
  const absl::Span<const float> in;
  const absl::Span<float> out;
  TESSERA_RETURN_IF_ERROR(g.all_reduce<float>(in, out, ReduceOp::kSum).await());
  TESSERA_RETURN_IF_ERROR(g.reduce<float>(in, out, ReduceOp::kAvg, 1).await());
  TESSERA_RETURN_IF_ERROR(g.broadcast<float>(in, out, 2).await());
  TESSERA_RETURN_IF_ERROR(g.all_gather<float>(in, out).await());
  TESSERA_RETURN_IF_ERROR(g.reduce_scatter<float>(in, out, ReduceOp::kMax).await());
  TESSERA_RETURN_IF_ERROR(g.all_to_all<float>(in, out).await());
  TESSERA_RETURN_IF_ERROR(g.all_to_all<float>(in, out, {0, 0, 0}, {0, 0, 0}).await());
  TESSERA_RETURN_IF_ERROR(g.gather<float>(in, out, 0).await());
  TESSERA_RETURN_IF_ERROR(g.scatter<float>(in, out, 0).await());
  TESSERA_RETURN_IF_ERROR(g.exchange<float>(in, {{0}, {0}}, out, {{4}, {0}}, {}).await());
  const Work sent = g.send<float>(in, (m.position + 1) % 3);
  TESSERA_RETURN_IF_ERROR(g.recv<float>(out, (m.position + 2) % 3).await());
  TESSERA_RETURN_IF_ERROR(sent.await());
  return g.barrier().await();
}

Status all_gather_all_empty(const Member& m) {
  return m.group.all_gather<int32_t>({}, {}, {0, 0, 0}).await();
}

Status reduce_scatter_by_split_rule(const Member& m) {
  const std::vector<int64_t> counts = {1, 0, 1, 0, 0, 1, 0, 0};
  const Values<int32_t> in = {1, 2, 3};
  Values<int32_t> out(counts[m.position]), want(counts[m.position]);
  if (m.position == 0) want[0] = 8;
  if (m.position == 2) want[0] = 16;
  if (m.position == 5) want[0] = 24;
  TESSERA_RETURN_IF_ERROR(
      m.group.reduce_scatter<int32_t>(in.in(), out.out(), ReduceOp::kSum, counts).await());
  return expect_equal<int32_t>(out.in(), want, "out");
}

Status in_place_all_reduce(const Member& m) {
  // Sums that depend on the order of their terms.
  Values<float> in(1000), out(1000);
  for (int i = 0; i < 1000; ++i) in[i] = 1.0f / static_cast<float>(1 + i + 331 * m.position);
  TESSERA_RETURN_IF_ERROR(m.group.all_reduce<float>(in.in(), out.out(), ReduceOp::kSum).await());
  TESSERA_RETURN_IF_ERROR(m.group.all_reduce<float>(in.in(), in.out(), ReduceOp::kSum).await());
  return expect_equal<float>(in.in(), out, "in place");
}

Status partial_overlap_refused(const Member& m) {
  Values<float> memory(11, 1.0f);
  const Status status =
      m.group.all_reduce<float>(memory.in().subspan(0, 10), memory.out().subspan(1), ReduceOp::kSum)
          .await();
  TESSERA_RETURN_IF_ERROR(expect_error(status, absl::StatusCode::kInvalidArgument, {"overlap"}));
  TESSERA_RETURN_IF_ERROR(expect_same_text(m.group, status.message()));
  return expect_equal<float>(memory.in(), Values<float>(11, 1.0f), "memory is not touched");
}

Status misaligned_u8(const Member& m) {
  // One byte before and after the memory that the operation may write.
  std::vector<uint8_t> in(1024 + 8, 5), out(1024 + 8, 111);
  const auto misaligned = [](std::vector<uint8_t>& v) {
    uint8_t* p = v.data();
    while (reinterpret_cast<uintptr_t>(p) % 4 != 1) ++p;
    return p;
  };
  uint8_t* from = misaligned(in);
  uint8_t* to = misaligned(out);
  for (int i = 0; i < 1023; ++i) from[i] = static_cast<uint8_t>(i + m.position);
  TESSERA_RETURN_IF_ERROR(
      m.group.all_reduce<uint8_t>({from, 1023}, {to, 1023}, ReduceOp::kSum).await());
  for (int i = 0; i < 1023; ++i) {
    TESSERA_RETURN_IF_ERROR(expect(to[i] == static_cast<uint8_t>(3 * i + 3), "right values"));
  }
  bool clean = to[1023] == 111;
  for (const uint8_t* p = out.data(); p < to; ++p) clean &= *p == 111;
  return expect(clean, "nothing is written outside");
}

Status f64_inside_a_byte_buffer(const Member& m) {
  alignas(8) std::byte in[8 + 5 * 8];
  alignas(8) std::byte out[8 + 5 * 8];
  auto* from = reinterpret_cast<double*>(in + 8);
  auto* to = reinterpret_cast<double*>(out + 8);
  for (int i = 0; i < 5; ++i) from[i] = i + m.position;
  TESSERA_RETURN_IF_ERROR(m.group.all_reduce<double>({from, 5}, {to, 5}, ReduceOp::kSum).await());
  return expect_equal<double>({to, 5}, {1, 3, 5, 7, 9}, "out");
}

Status one_member_copies(const Member& m) {
  const Group& g = m.group;
  Values<float> in(3);
  const uint32_t bits[3] = {0x7fc12345, 0xffa00001, 0x80000000};  // NaNs with payloads, -0
  std::memcpy(&in[0], bits, sizeof bits);
  const auto copies = [&](const Values<float>& out) {
    return expect(std::memcmp(&out[0], bits, sizeof bits) == 0, "the input bit for bit");
  };
  for (const ReduceOp op :
       {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kAvg}) {
    Values<float> a(3), b(3), c(3);
    TESSERA_RETURN_IF_ERROR(g.all_reduce<float>(in.in(), a.out(), op).await());
    TESSERA_RETURN_IF_ERROR(g.reduce<float>(in.in(), b.out(), op, 0).await());
    TESSERA_RETURN_IF_ERROR(g.reduce_scatter<float>(in.in(), c.out(), op).await());
    for (const auto& out : {a, b, c}) TESSERA_RETURN_IF_ERROR(copies(out));
  }
  Values<float> out[7] = {Values<float>(3), Values<float>(3), Values<float>(3), Values<float>(3),
                          Values<float>(3), Values<float>(3), Values<float>(3)};
  const Box box = {{2}, {3}};
  TESSERA_RETURN_IF_ERROR(g.broadcast<float>(in.in(), out[0].out(), 0).await());
  TESSERA_RETURN_IF_ERROR(g.all_gather<float>(in.in(), out[1].out()).await());
  TESSERA_RETURN_IF_ERROR(g.all_to_all<float>(in.in(), out[2].out()).await());
  TESSERA_RETURN_IF_ERROR(g.all_to_all<float>(in.in(), out[3].out(), {3}, {3}).await());
  TESSERA_RETURN_IF_ERROR(g.gather<float>(in.in(), out[4].out(), 0).await());
  TESSERA_RETURN_IF_ERROR(g.scatter<float>(in.in(), out[5].out(), 0).await());
  TESSERA_RETURN_IF_ERROR(
      g.exchange<float>(in.in(), box, out[6].out(), box, {{0, box, box}}).await());
  for (const auto& o : out) TESSERA_RETURN_IF_ERROR(copies(o));
  return g.barrier().await();
}

// Mesh {x=2, y=3}, value 10x + y, summed over a group of positions.
Status mesh_sum(const Member& m, const std::vector<int>& positions, int32_t expected) {
  TESSERA_ASSIGN_OR_RETURN(const Group group, m.subgroup(positions));
  const Values<int32_t> in = {10 * (m.position / 3) + m.position % 3};
  Values<int32_t> out(1);
  TESSERA_RETURN_IF_ERROR(group.all_reduce<int32_t>(in.in(), out.out(), ReduceOp::kSum).await());
  return expect_equal<int32_t>(out.in(), {expected}, "out");
}

Status mesh_axis_y(const Member& m) {
  const int x = m.position / 3;
  return mesh_sum(m, {3 * x, 3 * x + 1, 3 * x + 2}, x == 0 ? 3 : 33);
}

Status mesh_both_axes(const Member& m) { return mesh_sum(m, {0, 1, 2, 3, 4, 5}, 36); }

}  // namespace

std::vector<Case> fact_cases() {
  std::vector<Case> cases = reductions();
  const Case rows[] = {
      {"all_gather_variable", 3, all_gather_variable},
      {"reduce_scatter_i32", 4, reduce_scatter_i32},
      {"reduce_scatter_then_all_gather", 3, reduce_scatter_then_all_gather},
      {"all_to_all_i32", 4, all_to_all_i32},
      {"all_to_all_variable", 2, all_to_all_variable},
      {"broadcast_root_2", 4, broadcast_root_2},
      {"inputs_beside_the_root", 3, inputs_beside_the_root},
      {"reduce_root_1", 3, reduce_root_1},
      {"gather_root_0", 3, gather_root_0},
      {"ring_send_recv", 4, ring_send_recv},
      {"zero_elements_null_pointers", 3, zero_elements_null_pointers},
      {"all_gather_all_empty", 3, all_gather_all_empty},
      {"reduce_scatter_by_split_rule", 8, reduce_scatter_by_split_rule},
      {"in_place_all_reduce", 3, in_place_all_reduce},
      {"partial_overlap_refused", 3, partial_overlap_refused},
      {"misaligned_u8", 3, misaligned_u8},
      {"f64_inside_a_byte_buffer", 2, f64_inside_a_byte_buffer},
      {"one_member_copies", 1, one_member_copies},
      {"mesh_axis_y", 6, mesh_axis_y},
      {"mesh_both_axes", 6, mesh_both_axes},
  };
  cases.insert(cases.end(), std::begin(rows), std::end(rows));
  return cases;
}

}  // namespace tessera::conformance
