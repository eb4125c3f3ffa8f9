// SPDX-License-Identifier: Apache-2.0
//
// The sends and receives of members, as plain values: the bytes agree with the table of schedule.h,
// both ends of every message name it, and certain steps are one call of NCCL.
#include "collectives/nccl/schedule.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "collectives/collective.h"
#include "collectives/counts.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera::nccl {
namespace {

using Kind = Round::Kind;
using ::testing::ElementsAre;

// Memory that is never accessed.
class NoMemory : public MemoryPool {
 public:
  NoMemory() : MemoryPool(UsedBy::kDevice) {}
  StatusOr<Memory> take(int64_t size_bytes) override {
    next_ += (size_bytes + kPackingAlignment - 1) / kPackingAlignment * kPackingAlignment;
    return Memory{.data = reinterpret_cast<std::byte*>(next_)};
  }
  int64_t taken() const { return next_ - kFirst; }
  void give_back(const Memory& /*memory*/, int64_t /*size_bytes*/) override {}

 private:
  static constexpr int64_t kFirst = int64_t{1} << 40;
  int64_t next_ = kFirst;
};

constexpr DType kDType = DType::kFloat32;
constexpr int64_t kBytes = 4;

// A member's call.
struct Asked {
  CollectiveSpec spec = {.dtype = kDType};
  BoxExchange boxes;
};

// The schedules of all members of one operation.
class Plan {
 public:
  // `describe` fills in the arguments of a member.
  Plan(int num_members, Sums sums, const std::function<void(int, Asked&)>& describe) {
    std::vector<MemberMemory> members(num_members);
    std::vector<std::vector<int64_t>> told(num_members);
    for (int m = 0; m < num_members; ++m) {
      Asked asked;
      describe(m, asked);
      asked.spec.boxes = &asked.boxes;
      const StatusOr<Collective::Ptr> made = Collective::make({num_members, m}, asked.spec);
      EXPECT_THAT(made.status(), testing::IsOk());
      const Collective& collective = *collectives_.emplace_back(*made);
      told[m] =
          collective.needs_peer_counts() ? own_counts(collective) : encode_request(collective);
      members[m].in = reinterpret_cast<const std::byte*>((int64_t{1} << 32) * (2 * m + 1));
      members[m].out = reinterpret_cast<std::byte*>((int64_t{1} << 32) * (2 * m + 2));
      members[m].in_count = collective.in_count().value_or(0);
      members[m].counts = told[m].data();
    }
    const std::vector<int64_t> sent = sent_packing_bytes(*collectives_[0], members);
    for (int m = 0; m < num_members; ++m) {
      const auto own_pool = std::make_shared<NoMemory>();
      const auto sent_pool = std::make_shared<NoMemory>();
      StatusOr<Schedule> schedule =
          make_schedule(*collectives_[m], members, sums, {own_pool, sent_pool});
      EXPECT_THAT(schedule, testing::IsOk());
      // The memory taken before members meet, and when all requests are known, is enough.
      EXPECT_LE(own_pool->taken(), packing_bytes(*collectives_[m], sums)) << m;
      EXPECT_LE(sent_pool->taken(), sent[m]) << m;
      schedules_.push_back(*std::move(schedule));
    }
  }

  int size() const { return static_cast<int>(schedules_.size()); }
  const Collective& collective(int member) const { return *collectives_[member]; }
  const Schedule& schedule(int member) const { return schedules_[member]; }

  int64_t sent(int member) const {
    int64_t bytes = 0;
    for (const Round& round : schedules_[member].rounds) {
      for (const Send& send : round.sends) bytes += send.num_bytes;
      if (round.kind == Kind::kAllGather) bytes += (size() - 1) * round.num_bytes;
    }
    return bytes;
  }
  int64_t received(int member) const {
    int64_t bytes = 0;
    for (const Round& round : schedules_[member].rounds) {
      for (const Receive& receive : round.receives) bytes += receive.num_bytes;
      if (round.kind == Kind::kAllGather) bytes += (size() - 1) * round.num_bytes;
      if (round.kind == Kind::kBroadcast && round.root != member) bytes += round.num_bytes;
    }
    return bytes;
  }
  // The kinds of the member's rounds that are not silent.
  std::vector<Kind> kinds(int member) const {
    std::vector<Kind> kinds;
    for (const Round& round : schedules_[member].rounds) {
      if (!round.is_silent()) kinds.push_back(round.kind);
    }
    return kinds;
  }
  // In every round the sends of a member to another equal the receives of that member from it, in
  // order; and a collective is equal on all members.
  void expect_matched() const {
    for (size_t r = 0; r < schedules_[0].rounds.size(); ++r) {
      std::map<std::pair<int, int>, std::vector<int64_t>> sent, received;
      for (int m = 0; m < size(); ++m) {
        ASSERT_EQ(schedules_[m].rounds.size(), schedules_[0].rounds.size());
        const Round& round = schedules_[m].rounds[r];
        const Round& first = schedules_[0].rounds[r];
        EXPECT_EQ(round.kind, first.kind);
        EXPECT_EQ(round.num_bytes, first.num_bytes);
        EXPECT_EQ(round.count, first.count);
        EXPECT_EQ(round.dtype, first.dtype);
        EXPECT_EQ(round.op, first.op);
        EXPECT_EQ(round.root, first.root);
        for (const Send& s : round.sends) {
          EXPECT_NE(s.peer, m);
          sent[{m, s.peer}].push_back(s.num_bytes);
        }
        for (const Receive& s : round.receives) received[{s.peer, m}].push_back(s.num_bytes);
      }
      EXPECT_EQ(sent, received) << "round " << r;
    }
  }

 private:
  std::vector<Collective::Ptr> collectives_;
  std::vector<Schedule> schedules_;
};

int64_t total(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// Element counts by member: equal counts, and unequal counts of which some are 0.
std::vector<std::vector<int64_t>> part_counts(int num_members) {
  std::vector<int64_t> uneven;
  for (int k = 0; k < num_members; ++k) uneven.push_back(k * 7 % 5 * 13);
  return {std::vector<int64_t>(num_members, 0), std::vector<int64_t>(num_members, 1),
          std::vector<int64_t>(num_members, 1000), uneven};
}

// The bytes that a member should send and receive.
struct Bytes {
  int64_t sent;
  int64_t received;
};

void expect_bytes(const Plan& plan, const std::function<Bytes(int member)>& want) {
  plan.expect_matched();
  for (int m = 0; m < plan.size(); ++m) {
    EXPECT_EQ(plan.sent(m), want(m).sent) << "member " << m;
    EXPECT_EQ(plan.received(m), want(m).received) << "member " << m;
  }
}

class BytesTest : public ::testing::TestWithParam<int> {
 protected:
  const int n_ = GetParam();
};

TEST_P(BytesTest, OfMovesByCounts) {
  for (const std::vector<int64_t>& counts : part_counts(n_)) {
    SCOPED_TRACE(absl::StrCat(total(counts), " elements"));
    const int64_t all = total(counts) * kBytes;
    const int root = n_ / 2;
    const auto call_of = [&](OpKind kind) {
      return [&, kind](int /*member*/, Asked& asked) {
        asked.spec.kind = kind;
        asked.spec.root = root;
        asked.spec.counts = Counts::of(counts);
        asked.spec.count = total(counts);
      };
    };
    const auto own = [&](int m) { return counts[m] * kBytes; };
    expect_bytes(Plan(n_, Sums::kOrdered, call_of(OpKind::kAllGather)), [&](int m) {
      return Bytes{(n_ - 1) * own(m), all - own(m)};
    });
    expect_bytes(Plan(n_, Sums::kOrdered, call_of(OpKind::kGather)), [&](int m) {
      return m == root ? Bytes{0, all - own(m)} : Bytes{own(m), 0};
    });
    expect_bytes(Plan(n_, Sums::kOrdered, call_of(OpKind::kScatter)), [&](int m) {
      return m == root ? Bytes{all - own(m), 0} : Bytes{0, own(m)};
    });
    expect_bytes(Plan(n_, Sums::kOrdered, call_of(OpKind::kBroadcast)), [&](int m) {
      return Bytes{0, m == root ? 0 : all};
    });
  }
}

TEST_P(BytesTest, OfAllToAll) {
  const auto count = [&](int from, int to) { return int64_t{(from * 3 + to * 5) % 4 * 11}; };
  const auto sum = [&](const std::function<int64_t(int peer)>& count_of) {
    int64_t elements = 0;
    for (int peer = 0; peer < n_; ++peer) elements += count_of(peer);
    return elements;
  };
  const Plan plan(n_, Sums::kOrdered, [&](int m, Asked& asked) {
    asked.spec.kind = OpKind::kAllToAll;
    std::vector<int64_t> sent, received;
    for (int peer = 0; peer < n_; ++peer) {
      sent.push_back(count(m, peer));
      received.push_back(count(peer, m));
    }
    asked.spec.counts = Counts::of(sent);
    asked.spec.received_counts = Counts::of(received);
  });
  expect_bytes(plan, [&](int m) {
    return Bytes{(sum([&](int peer) { return count(m, peer); }) - count(m, m)) * kBytes,
                 (sum([&](int peer) { return count(peer, m); }) - count(m, m)) * kBytes};
  });
}

TEST_P(BytesTest, OfOrderedReductions) {
  for (const std::vector<int64_t>& counts : part_counts(n_)) {
    const int64_t all = total(counts) * kBytes;
    const Plan plan(n_, Sums::kOrdered, [&](int /*member*/, Asked& asked) {
      asked.spec.kind = OpKind::kReduceScatter;
      asked.spec.counts = Counts::of(counts);
      asked.spec.count = total(counts);
    });
    expect_bytes(plan, [&](int m) {
      const int64_t own = counts[m] * kBytes;
      return Bytes{all - own, (n_ - 1) * own};
    });
  }
  for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{100}, int64_t{1} << 20}) {
    for (const OpKind kind : {OpKind::kAllReduce, OpKind::kReduce}) {
      SCOPED_TRACE(absl::StrCat(op_kind_name(kind), " of ", count));
      const int root = n_ - 1;
      const auto describe = [&](int /*member*/, Asked& asked) {
        asked.spec.kind = kind;
        asked.spec.root = root;
        asked.spec.count = count;
      };
      const Plan plan(n_, Sums::kOrdered, describe);
      const int64_t all = count * kBytes;
      expect_bytes(plan, [&](int m) {
        const int64_t own = chunk_of(plan.collective(m), m).count * kBytes;
        // To a line of memory for each member.
        EXPECT_LE(std::abs(own - all / n_), 64 * n_);
        if (kind == OpKind::kAllReduce) return Bytes{all + (n_ - 2) * own, all + (n_ - 2) * own};
        if (m == root) return Bytes{all - own, all + (n_ - 2) * own};
        return Bytes{all, (n_ - 1) * own};
      });
    }
  }
}

// One row of a matrix of n * rows x 6 per member, or a column of it.
Box part_of(int n, int rows, int member, int dim) {
  Box box = {{0, 0}, {n * rows, n * 6}};
  box.sizes[dim] /= n;
  box.offsets[dim] = member * box.sizes[dim];
  return box;
}

// A list of pulls cannot be changed once it is made.
void add_pull(Asked& asked, BoxPull pull) {
  std::vector<BoxPull> all(asked.boxes.pulls.begin(), asked.boxes.pulls.end());
  all.push_back(std::move(pull));
  asked.boxes.pulls = std::move(all);
}

// Each member holds its part along one dim of a matrix, and pulls its part along the other dim from
// the members that hold it.
TEST_P(BytesTest, OfAnExchange) {
  const Plan plan(n_, Sums::kOrdered, [&](int m, Asked& asked) {
    asked.spec.kind = OpKind::kExchange;
    asked.boxes.in_box = part_of(n_, 2, m, 0);
    asked.boxes.out_box = part_of(n_, 2, m, 1);
    for (int k = 0; k < n_; ++k) {
      const Box held = part_of(n_, 2, k, 0);
      add_pull(asked, {k, held, intersect(held, asked.boxes.out_box)});
    }
  });
  const int64_t box = 2 * 6 * kBytes;
  expect_bytes(plan, [&](int) { return Bytes{(n_ - 1) * box, (n_ - 1) * box}; });
  EXPECT_THAT(plan.kinds(0), ElementsAre(Kind::kMessages));
}

TEST_P(BytesTest, OfReducedBoxes) {
  const Box whole = {{0, 0}, {n_ * 2, n_ * 6}};
  const Plan plan(n_, Sums::kOrdered, [&](int m, Asked& asked) {
    asked.spec.kind = OpKind::kReduceBoxes;
    asked.boxes.in_box = whole;
    asked.boxes.out_box = part_of(n_, 2, m, 1);
    for (int k = 0; k < n_; ++k) add_pull(asked, {k, whole, {}});
  });
  const int64_t box = n_ * 2 * 6 * kBytes;
  expect_bytes(plan, [&](int) { return Bytes{(n_ - 1) * box, (n_ - 1) * box}; });
}

INSTANTIATE_TEST_SUITE_P(Members, BytesTest, ::testing::Range(2, 9),
                         [](const auto& info) { return absl::StrCat(info.param); });

// ---- What is one call of NCCL.

constexpr int kMembers = 4;
using Describe = std::function<void(int member, Asked& asked)>;

// An exchange in which all members have the parts along `dim` of a matrix, and want all of it.
Describe gather_along(int dim, const std::function<int(int m, int k)>& source_of) {
  return [=](int m, Asked& asked) {
    asked.spec.kind = OpKind::kExchange;
    asked.boxes.in_box = part_of(kMembers, 2, m, dim);
    asked.boxes.out_box = Box{{0, 0}, {2 * kMembers, 6 * kMembers}};
    for (int k = 0; k < kMembers; ++k) {
      const int source = source_of(m, k);
      const Box box = part_of(kMembers, 2, source, dim);
      add_pull(asked, {source, box, box});
    }
  };
}
int in_order(int /*m*/, int k) { return k; }
int own_first(int m, int k) { return (m + k) % kMembers; }

// All but (perhaps) member 2, which has it, want a matrix of 3 x 5, out of it a part of `rows`.
Describe from_member_2(int rows, bool for_itself) {
  return [=](int m, Asked& asked) {
    const Box whole = {{0, 0}, {3, 5}};
    asked.spec.kind = OpKind::kExchange;
    asked.boxes.in_box = m == 2 ? whole : Box{{0, 0}, {0, 0}};
    asked.boxes.out_box = Box{{0, 0}, {rows, 5}};
    if (m != 2 || for_itself) add_pull(asked, {2, whole, {{0, 0}, {rows, 5}}});
  };
}

// Terms of a matrix, of which each member wants the sum of its part along `dim`.
Describe sums_along(int dim, int rows_beyond) {
  return [=](int m, Asked& asked) {
    const Box whole = {{0, 0}, {2 * kMembers + rows_beyond, 6 * kMembers}};
    asked.spec.kind = OpKind::kReduceBoxes;
    asked.boxes.in_box = whole;
    asked.boxes.out_box = part_of(kMembers, 2, m, dim);
    if (m == 0 && rows_beyond > 0) asked.boxes.out_box = Box{{0, 0}, {1, 6 * kMembers}};
    for (int k = 0; k < kMembers; ++k) add_pull(asked, {k, whole, {}});
  };
}

Describe reduction(OpKind kind, std::vector<int64_t> counts, DType dtype = kDType) {
  return [=](int /*member*/, Asked& asked) {
    asked.spec.kind = kind;
    asked.spec.dtype = dtype;
    asked.spec.op = ReduceOp::kMax;
    asked.spec.counts = Counts::of(counts);
    asked.spec.count = total(counts);
  };
}

struct CallCase {
  const char* name;
  Sums sums;
  Describe describe;
  std::vector<Kind> kinds;
  // The number of packed buffers, before or after, of member 1.
  int num_packed = 0;
};
void PrintTo(const CallCase& c, std::ostream* out) { *out << c.name; }

const std::vector<int64_t> kEqual = {5, 5, 5, 5};
const std::vector<int64_t> kUnequal = {5, 5, 4, 6};

// clang-format off
const CallCase kCalls[] = {
    {"rows_are_gathered", Sums::kOrdered, gather_along(0, in_order), {Kind::kAllGather}},
    {"in_whatever_order_they_are_named", Sums::kOrdered, gather_along(0, own_first), {Kind::kAllGather}},
    {"columns_are_gathered_and_unpacked", Sums::kOrdered, gather_along(1, in_order), {Kind::kAllGather}, 1},
    {"a_broadcast", Sums::kOrdered, from_member_2(3, true), {Kind::kBroadcast}},
    {"a_broadcast_without_its_source", Sums::kOrdered, from_member_2(2, false), {Kind::kBroadcast}},
    {"nobody_wants_anything", Sums::kOrdered, from_member_2(0, true), {}},
    {"ordered_sums_of_rows", Sums::kOrdered, sums_along(0, 0), {Kind::kMessages}, 3},
    {"rows_of_sums", Sums::kNccl, sums_along(0, 0), {Kind::kReduceScatter}},
    {"columns_of_sums_are_packed", Sums::kNccl, sums_along(1, 0), {Kind::kReduceScatter}, 1},
    {"unequal_boxes_of_sums", Sums::kNccl, sums_along(0, 1), {Kind::kMessages}, 3},
    {"all_reduce", Sums::kNccl, reduction(OpKind::kAllReduce, kUnequal), {Kind::kAllReduce}},
    {"reduce", Sums::kNccl, reduction(OpKind::kReduce, kUnequal), {Kind::kReduce}},
    {"reduce_scatter", Sums::kNccl, reduction(OpKind::kReduceScatter, kEqual), {Kind::kReduceScatter}},
    {"unequal_reduce_scatter", Sums::kNccl, reduction(OpKind::kReduceScatter, kUnequal), {Kind::kMessages}, 3},
    {"no_elements", Sums::kNccl, reduction(OpKind::kAllReduce, {0, 0, 0, 0}), {}},
};
// clang-format on

class CallTest : public ::testing::TestWithParam<CallCase> {};

TEST_P(CallTest, OfAllMembers) {
  const CallCase& c = GetParam();
  const Plan plan(kMembers, c.sums, c.describe);
  plan.expect_matched();
  for (int m = 0; m < kMembers; ++m) EXPECT_EQ(plan.kinds(m), c.kinds) << "member " << m;
  EXPECT_EQ(plan.schedule(1).packed.size(), c.num_packed);
}

INSTANTIATE_TEST_SUITE_P(Schedule, CallTest, ::testing::ValuesIn(kCalls),
                         [](const auto& info) { return info.param.name; });

TEST(ScheduleTest, BoolIsTheExtremeOfBytes) {
  const Plan plan(kMembers, Sums::kNccl, reduction(OpKind::kAllReduce, kEqual, DType::kBool));
  const Round& round = plan.schedule(0).rounds[0];
  EXPECT_EQ(round.dtype, DType::kUint8);
  EXPECT_EQ(round.op, ReduceOp::kMax);
  EXPECT_EQ(round.count, 20);
}

}  // namespace
}  // namespace tessera::nccl
