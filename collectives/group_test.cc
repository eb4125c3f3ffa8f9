// SPDX-License-Identifier: Apache-2.0
//
// The memory that the functions of Group accept, checked by whether calls compile; and both forms
// of each function make the same call.
#include "collectives/group.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "collectives/arguments.h"
#include "collectives/collective.h"
#include "collectives/group_backend.h"
#include "collectives/make_group.h"
#include "collectives/op_kind.h"
#include "collectives/pending_work.h"
#include "collectives/work.h"
#include "device/device_span.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

constexpr ReduceOp kSum = ReduceOp::kSum;

// Each function of an in and an out, as a callable that tells whether it can be called with given
// types.
#define TESSERA_CALL(name, ...)                                                         \
  [](const Group& group, auto&& in,                                                     \
     auto&& out) -> decltype(group.name(std::forward<decltype(in)>(in),                 \
                                        std::forward<decltype(out)>(out) __VA_OPT__(, ) \
                                            __VA_ARGS__)) {                             \
    return group.name(std::forward<decltype(in)>(in),                                   \
                      std::forward<decltype(out)>(out) __VA_OPT__(, ) __VA_ARGS__);     \
  }
constexpr auto kCalls = std::make_tuple(
    TESSERA_CALL(all_reduce, kSum), TESSERA_CALL(reduce, kSum, 0), TESSERA_CALL(broadcast, 0),
    TESSERA_CALL(all_gather), TESSERA_CALL(all_gather, {1, 1}), TESSERA_CALL(reduce_scatter, kSum),
    TESSERA_CALL(reduce_scatter, kSum, {1, 1}), TESSERA_CALL(all_to_all),
    TESSERA_CALL(all_to_all, {1, 1}, {1, 1}), TESSERA_CALL(gather, 0),
    TESSERA_CALL(gather, 0, {1, 1}), TESSERA_CALL(scatter, 0), TESSERA_CALL(scatter, 0, {1, 1}),
    [](const Group& group, auto&& in,
       auto&& out) -> decltype(group.exchange(std::forward<decltype(in)>(in), Box(),
                                              std::forward<decltype(out)>(out), Box(), {})) {
      return group.exchange(std::forward<decltype(in)>(in), Box(), std::forward<decltype(out)>(out),
                            Box(), {});
    });
#undef TESSERA_CALL

template <class In, class Out, class... Call>
consteval int num_that_take(const std::tuple<Call...>&) {
  return (0 + ... + (std::is_invocable_r_v<Work, const Call&, const Group&, In, Out> ? 1 : 0));
}
constexpr int kAll = static_cast<int>(std::tuple_size_v<decltype(kCalls)>);
template <class In, class Out>
inline constexpr bool kCompiles = num_that_take<In, Out>(kCalls) == kAll;
template <class In, class Out>
inline constexpr bool kIsRefused = num_that_take<In, Out>(kCalls) == 0;

using Vector = std::vector<float>;
using Array = std::array<float, 4>;
using CArray = float[4];
using Span = absl::Span<float>;
using ConstSpan = absl::Span<const float>;
using OnDevice = DeviceSpan<float>;

// Every in beside every out.
template <class... In>
struct Ins {
  template <class... Out>
  static consteval bool all_compile() {
    return (row<In, Out...>() && ...);
  }

 private:
  template <class I, class... Out>
  static consteval bool row() {
    return (kCompiles<I, Out> && ...);
  }
};
using AnyIn = Ins<Vector&, const Vector&, Vector, Array&, const Array&, CArray&, const CArray&,
                  Span, const Span&, ConstSpan, const ConstSpan&, OnDevice, const OnDevice&,
                  std::span<float>, std::span<const float>>;
static_assert(AnyIn::all_compile<Vector&, Array&, CArray&, Span, Span&, const Span&, OnDevice,
                                 OnDevice&, const OnDevice&, std::span<float>>());

// An out that cannot be written, or that the end of the call destroys.
static_assert(kIsRefused<Vector&, const Vector&> && kIsRefused<Vector&, Vector>);
static_assert(kIsRefused<Vector&, const Array&> && kIsRefused<Vector&, Array>);
static_assert(kIsRefused<Vector&, const CArray&> && kIsRefused<Vector&, ConstSpan>);
static_assert(kIsRefused<Vector&, std::span<const float>>);
// Two types of elements, also where one would convert.
static_assert(kIsRefused<Vector&, std::vector<double>&>);
static_assert(kIsRefused<absl::Span<const int32_t>, Span>);
static_assert(kIsRefused<OnDevice&, DeviceSpan<double>&>);
// Types without an array of elements of a dtype.
static_assert(kIsRefused<std::vector<bool>&, std::vector<bool>&>);
static_assert(kIsRefused<std::string&, std::string&> && kIsRefused<float, float>);
static_assert(kIsRefused<std::vector<float*>&, std::vector<float*>&>);

template <class InOut>
concept CanReduceInPlace = requires(const Group& group, InOut inout) {
  group.all_reduce(std::forward<InOut>(inout), kSum);
  group.reduce(std::forward<InOut>(inout), kSum, 1);
  group.broadcast(std::forward<InOut>(inout), 1);
  group.all_gather(std::forward<InOut>(inout));
};
static_assert(CanReduceInPlace<Vector&> && CanReduceInPlace<Array&> && CanReduceInPlace<CArray&>);
static_assert(CanReduceInPlace<Span> && CanReduceInPlace<const Span&>);
static_assert(CanReduceInPlace<OnDevice> && CanReduceInPlace<const OnDevice&>);
static_assert(!CanReduceInPlace<const Vector&> && !CanReduceInPlace<Vector>);
static_assert(!CanReduceInPlace<ConstSpan> && !CanReduceInPlace<std::vector<bool>&>);

template <class In>
concept CanSend = requires(const Group& group, In in) {
  group.send(std::forward<In>(in), 1);
};
template <class Out>
concept CanRecv = requires(const Group& group, Out out) {
  group.recv(std::forward<Out>(out), 1);
};
static_assert(CanSend<Vector&> && CanSend<const Vector&> && CanSend<Vector> && CanSend<CArray&>);
static_assert(CanSend<Array&> && CanSend<Span> && CanSend<ConstSpan> && CanSend<const OnDevice&>);
static_assert(!CanSend<std::vector<bool>&> && !CanSend<float>);
static_assert(CanRecv<Vector&> && CanRecv<Array&> && CanRecv<CArray&> && CanRecv<Span>);
static_assert(CanRecv<const OnDevice&> && CanRecv<const Span&>);
static_assert(!CanRecv<const Vector&> && !CanRecv<Vector> && !CanRecv<ConstSpan>);

// Keeps the run that was started last.
class LastRun final : public GroupBackend {
 public:
  absl::Span<const int> device_ids() const override { return ids; }
  Work start(Collective::Ptr c, Arguments a) override {
    collective = std::move(c);
    arguments = std::move(a);
    return internal::make_work(nullptr);
  }

  std::vector<int> ids = {0, 1};
  Collective::Ptr collective;
  Arguments arguments;
};

class GroupMemoryTest : public ::testing::Test {
 protected:
  // The last run is of these elements.
  void expect_call(OpKind kind, const float* in, int64_t in_count, const float* out,
                   int64_t out_count) const {
    const Collective& collective = *backend_->collective;
    EXPECT_THAT(collective.error(), testing::IsOk());
    EXPECT_EQ(collective.kind(), kind);
    EXPECT_EQ(collective.dtype(), DType::kFloat32);
    EXPECT_EQ(collective.in_count().value_or(in_count), in_count);
    EXPECT_EQ(collective.out_count().value_or(out_count), out_count);
    EXPECT_EQ(backend_->arguments.in, reinterpret_cast<const std::byte*>(in));
    EXPECT_EQ(backend_->arguments.out, reinterpret_cast<const std::byte*>(out));
  }

  const std::shared_ptr<LastRun> backend_ = std::make_shared<LastRun>();
  const Group group_ = internal::make_group(backend_, 1);
  Vector in_ = {1, 2};
  Vector out_ = {0, 0};
};

TEST_F(GroupMemoryTest, FormsOfOneOperationMakeTheSameCall) {
  const auto expect = [&] { expect_call(OpKind::kAllReduce, in_.data(), 2, out_.data(), 2); };
  group_.all_reduce(in_, out_, kSum);
  expect();
  group_.all_reduce(in_, absl::MakeSpan(out_), kSum);
  expect();
  group_.all_reduce(absl::MakeConstSpan(in_), absl::MakeSpan(out_), kSum);
  expect();
  group_.all_reduce(absl::MakeSpan(in_), absl::MakeSpan(out_), kSum);
  expect();
  group_.all_reduce<float>(in_, absl::MakeSpan(out_), kSum);
  expect();
  group_.all_reduce<float>({in_.data(), 2}, {out_.data(), 2}, kSum);
  expect();
  group_.all_reduce(in_, DeviceSpan<float>(absl::MakeSpan(out_), nullptr), kSum);
  expect();
  group_.all_reduce<float>(in_, DeviceSpan<float>(absl::MakeSpan(out_), nullptr), kSum);
  expect();
}

TEST_F(GroupMemoryTest, EveryFunctionPassesItsMemory) {
  const float* const in = in_.data();
  const float* const out = out_.data();
  group_.reduce(in_, out_, kSum, 1);
  expect_call(OpKind::kReduce, in, 2, out, 2);
  group_.broadcast(in_, out_, 0);
  expect_call(OpKind::kBroadcast, in, 2, out, 2);
  const ConstSpan one_in = absl::MakeConstSpan(in_).first(1);
  const Span one_out = absl::MakeSpan(out_).first(1);
  group_.all_gather(one_in, out_);
  expect_call(OpKind::kAllGather, in, 1, out, 2);
  group_.reduce_scatter(in_, one_out, kSum, {1, 1});
  expect_call(OpKind::kReduceScatter, in, 2, out, 1);
  group_.all_to_all(in_, out_);
  expect_call(OpKind::kAllToAll, in, 2, out, 2);
  group_.all_to_all(in_, out_, {1, 1}, {1, 1});
  expect_call(OpKind::kAllToAll, in, 2, out, 2);
  group_.gather(one_in, out_, 1, {1, 1});
  expect_call(OpKind::kGather, in, 1, out, 2);
  group_.scatter(in_, one_out, 1);
  expect_call(OpKind::kScatter, in, 2, out, 1);
  group_.exchange(in_, {{0}, {2}}, out_, {{0}, {2}}, {});
  expect_call(OpKind::kExchange, in, 2, out, 2);
  group_.send(in_, 0);
  expect_call(OpKind::kSendRecv, in, 2, nullptr, 0);
  group_.recv(out_, 0);
  expect_call(OpKind::kSendRecv, nullptr, 0, out, 2);
}

TEST_F(GroupMemoryTest, OneArgumentIsInAndOut) {
  const float* const in = in_.data();
  group_.all_reduce(in_, kSum);
  expect_call(OpKind::kAllReduce, in, 2, in, 2);
  group_.all_reduce(absl::MakeSpan(in_), kSum);
  expect_call(OpKind::kAllReduce, in, 2, in, 2);
  group_.all_reduce<float>({in_.data(), 2}, kSum);
  expect_call(OpKind::kAllReduce, in, 2, in, 2);
  group_.reduce(in_, kSum, 0);
  expect_call(OpKind::kReduce, in, 2, in, 2);
  group_.broadcast(DeviceSpan<float>(absl::MakeSpan(in_), nullptr), 0);
  expect_call(OpKind::kBroadcast, in, 2, in, 2);
  group_.all_gather(in_);
  expect_call(OpKind::kAllGather, in + 1, 1, in, 2);
  group_.all_gather<float>(absl::MakeSpan(in_));
  expect_call(OpKind::kAllGather, in + 1, 1, in, 2);
  group_.all_reduce<float>({}, kSum);
  expect_call(OpKind::kAllReduce, nullptr, 0, nullptr, 0);
  group_.all_gather<float>({});
  expect_call(OpKind::kAllGather, nullptr, 0, nullptr, 0);
}

TEST_F(GroupMemoryTest, AllGatherInPlaceNeedsEqualParts) {
  Vector three = {1, 2, 3};
  group_.all_gather(three);
  EXPECT_THAT(backend_->collective->error(),
              testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                ::testing::HasSubstr("out has 3 elements, and needs 2")));
}

TEST_F(GroupMemoryTest, BracesAreNoElementsOfTheOtherType) {
  group_.reduce(in_, {}, kSum, 0);
  expect_call(OpKind::kReduce, in_.data(), 2, nullptr, 0);
  group_.broadcast({}, out_, 0);
  expect_call(OpKind::kBroadcast, nullptr, 0, out_.data(), 2);
  group_.gather(absl::MakeConstSpan(in_), {}, 0);
  expect_call(OpKind::kGather, in_.data(), 2, nullptr, 0);
  group_.scatter({}, absl::MakeSpan(out_), 0);
  expect_call(OpKind::kScatter, nullptr, 0, out_.data(), 2);
  group_.exchange({}, {{0}, {0}}, out_, {{0}, {2}}, {});
  expect_call(OpKind::kExchange, nullptr, 0, out_.data(), 2);
  group_.broadcast<float>({}, {}, 0);
  expect_call(OpKind::kBroadcast, nullptr, 0, nullptr, 0);
  group_.send<float>({}, 0);
  expect_call(OpKind::kSendRecv, nullptr, 0, nullptr, 0);
}

TEST(GroupTest, PrintsItsDevicesAndItsOwn) {
  const auto text = [](std::vector<int> ids, int position) {
    const auto backend = std::make_shared<LastRun>();
    backend->ids = std::move(ids);
    std::ostringstream out;
    out << internal::make_group(backend, position);
    EXPECT_EQ(internal::make_group(backend, position).to_string(), out.str());
    return out.str();
  };
  EXPECT_EQ(text({4}, 0), "group of device 4, as device 4");
  EXPECT_EQ(text({0, 1}, 1), "group of devices 0, 1, as device 1");
  EXPECT_EQ(text({0, 1, 2, 3, 9}, 4), "group of devices 0-3, 9, as device 9");
  EXPECT_EQ(text({3, 2, 1, 5, 6, 7}, 0), "group of devices 3, 2, 1, 5-7, as device 3");
  EXPECT_EQ(Group().to_string(), "empty group");
}

// Ends with this status; a null deadline is a wait that has not happened.
class EndedWork final : public internal::PendingWork {
 public:
  explicit EndedWork(Status status) : status_(std::move(status)) {}
  bool done() const override { return true; }
  Status wait_until(absl::Time until) override {
    deadline = until;
    return status_;
  }

  std::optional<absl::Time> deadline;

 private:
  const Status status_;
};

TEST(AwaitAllTest, WaitsForAllAndReturnsTheFirstErrorOfTheList) {
  const auto ok = std::make_shared<EndedWork>(absl::OkStatus());
  const auto second = std::make_shared<EndedWork>(absl::AbortedError("second"));
  const auto third = std::make_shared<EndedWork>(absl::InternalError("third"));
  const std::vector<Work> works = {internal::make_work(ok), internal::make_work(second),
                                   internal::make_work(third)};
  EXPECT_THAT(await_all(works), testing::StatusIs(absl::StatusCode::kAborted));
  EXPECT_EQ(third->deadline, absl::InfiniteFuture());
  EXPECT_THAT(await_all({works[0], works[2]}), testing::StatusIs(absl::StatusCode::kInternal));
  EXPECT_THAT(await_all({works[0]}), testing::IsOk());
  EXPECT_THAT(await_all(absl::Span<const Work>()), testing::IsOk());
}

TEST(AwaitAllTest, HasOneDeadlineForAll) {
  const auto first = std::make_shared<EndedWork>(absl::OkStatus());
  const auto second = std::make_shared<EndedWork>(absl::OkStatus());
  EXPECT_THAT(
      await_all({internal::make_work(first), internal::make_work(second)}, absl::Seconds(1000)),
      testing::IsOk());
  EXPECT_EQ(first->deadline, second->deadline);
  EXPECT_LT(*first->deadline, absl::InfiniteFuture());
}

TEST(GroupTest, EmptyGroupNamesTheCall) {
  Group group = internal::make_group(std::make_shared<LastRun>(), 0);
  EXPECT_TRUE(group.valid());
  const Group moved_to = std::move(group);
  std::vector<float> x = {1, 2};
  for (const Group& empty : {Group(), group}) {  // NOLINT: tests an object that was moved from
    EXPECT_FALSE(empty.valid());
    EXPECT_EQ(empty.size(), 0);
    EXPECT_EQ(empty.position(), 0);
    const std::pair<const char*, Work> calls[] = {
        {"all_reduce", empty.all_reduce(x, kSum)},
        {"all_gather", empty.all_gather(x)},
        {"all_to_all", empty.all_to_all(x, x)},
        {"barrier", empty.barrier()},
        {"exchange", empty.exchange(x, Box(), x, Box(), {})},
        {"send", empty.send(x, 0)},
        {"recv", empty.recv(x, 0)},
    };
    for (const auto& [name, work] : calls) {
      EXPECT_TRUE(work.done());
      EXPECT_THAT(work.await(),
                  testing::StatusIs(absl::StatusCode::kFailedPrecondition,
                                    ::testing::HasSubstr(std::string("Group::") + name +
                                                         "() of an empty Group; assign a group of "
                                                         "Client::group() to it first")));
    }
  }
}

}  // namespace
}  // namespace tessera
