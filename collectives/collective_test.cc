// SPDX-License-Identifier: Apache-2.0
//
// The invariants of collective.h for every kind. A slow interpreter executes the Collectives of all
// members of an operation, one element at a time, and compares the outputs with an oracle that
// knows the operation, but no Collective.
#include "collectives/collective.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "collectives/counts.h"
#include "collectives/op_kind.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"
#include "tests/support/scalars.h"

namespace tessera {
namespace {

using testing::for_each_index;
using testing::IsOk;
using testing::place_in;
using testing::StatusIs;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
// The value of elements that no member has written.
constexpr int64_t kUntouched = -1;

using Values = std::vector<int64_t>;
using Collectives = std::vector<Collective::Ptr>;  // by member

// Element `i` of the input of a member; no two are equal.
int64_t value(int member, int64_t i) { return 1000 * (member + 1) + i; }

// Tells in which order the terms were added, which a sum does not.
int64_t fold(const Values& terms) {
  int64_t result = 0;
  for (const int64_t term : terms) result = result * 1'000'003 + term;
  return result;
}

// One operation as all members see it, done by the interpreter.
class Played {
 public:
  Played(Collectives members, std::vector<int64_t> in_counts, std::vector<int64_t> out_counts)
      : members_(std::move(members)), ins_(members_.size()), outs_(members_.size()) {
    for (size_t m = 0; m < members_.size(); ++m) {
      for (int64_t i = 0; i < in_counts[m]; ++i) {
        ins_[m].values.push_back(value(static_cast<int>(m), i));
      }
      outs_[m].values.assign(out_counts[m], kUntouched);
      for (Memory* memory : {&ins_[m], &outs_[m]}) memory->users.resize(memory->values.size());
    }
    for (int m = 0; m < size(); ++m) {
      all_pulls_.push_back(pulls_of(m));
      for (const BoxPull& pull : all_pulls_.back()) copy(m, pull);
      if (const BoxReduction* reduction = members_[m]->reduction()) reduce(m, *reduction);
    }
  }

  Values out(int member) const { return outs_[member].values; }

  // Checks invariants 1 and 2, and the statements of the members about themselves.
  void expect_in_order() const {
    EXPECT_EQ(fault_, "");
    int64_t written = 0;
    for (int m = 0; m < size(); ++m) {
      const Collective& c = *members_[m];
      for (const std::set<int>& writers : outs_[m].users) {
        EXPECT_LE(writers.size(), 1u) << "an element is written twice";
        written += static_cast<int64_t>(writers.size());
        EXPECT_TRUE(c.access().do_peers_write_output || is_only(writers, m));
      }
      for (const std::set<int>& readers : ins_[m].users) {
        EXPECT_TRUE(c.access().is_input_read || readers.empty());
        EXPECT_TRUE(c.access().do_peers_read_input || is_only(readers, m));
      }
      expect_in_place(m);
    }
    for (const Collective::Ptr& c : members_) {
      if (says_what_is_written(*c)) {
        EXPECT_EQ(c->bytes_written(), written * dtype_size(c->dtype()));
      }
    }
  }

 private:
  struct Memory {
    Values values;
    std::vector<std::set<int>> users;  // the members that read or write each element
    std::set<int64_t> kept;            // of an output: what in place is copied to itself
  };

  int size() const { return static_cast<int>(members_.size()); }
  // Not where a member knows its own part alone, nor of a barrier, in which each member writes a
  // word of its own, nor where replicas share an output.
  static bool says_what_is_written(const Collective& c) {
    return !c.needs_peer_counts() && c.replicas().empty() && c.kind() != OpKind::kExchange &&
           c.kind() != OpKind::kReduceBoxes && c.kind() != OpKind::kBarrier;
  }
  static bool is_only(const std::set<int>& users, int member) {
    return std::all_of(users.begin(), users.end(), [&](int user) { return user == member; });
  }

  std::vector<BoxPull> pulls_of(int member) const {
    const Collective& c = *members_[member];
    std::vector<Values> counts;
    std::vector<const int64_t*> pointers;
    for (const Collective::Ptr& other : members_) counts.push_back(own_counts(*other));
    for (const Values& own : counts) pointers.push_back(own.data());
    std::vector<BoxPull> made;
    const StatusOr<absl::Span<const BoxPull>> pulls = c.pulls(pointers, made);
    EXPECT_THAT(pulls, IsOk());
    if (!pulls.ok()) return {};
    return {pulls->begin(), pulls->end()};
  }

  // The element of `index` in the buffer that holds `held`.
  int64_t* use(Memory& memory, const Box& held, const std::vector<int64_t>& index, int user) {
    const int64_t place = place_in(held, index);
    if (held.num_elements() != static_cast<int64_t>(memory.values.size()) ||
        !contains(held, {index, std::vector<int64_t>(index.size(), 1)})) {
      fault_ = absl::StrCat("member ", user, " leaves ", held.to_string());
      return nullptr;
    }
    memory.users[place].insert(user);
    return &memory.values[place];
  }
  void copy(int member, const BoxPull& pull) {
    for_each_index(pull.box, [&](const std::vector<int64_t>& index) {
      const int64_t* from = use(ins_[pull.source], pull.source_box, index, member);
      write(member, member, index, from);
      const Collective::InPlace& rule = members_[member]->in_place();
      const int64_t to = place_in(members_[member]->out_box(), index);
      const int64_t place = place_in(pull.source_box, index);
      if (pull.source == member && to - rule.out_offset == place - rule.in_offset) {
        outs_[member].kept.insert(to);
      }
    });
  }
  void reduce(int member, const BoxReduction& reduction) {
    using Target = BoxReduction::Target;
    const Collective& c = *members_[member];
    for_each_index(reduction.box, [&](const std::vector<int64_t>& index) {
      Values terms;
      for (int k = 0; k < size(); ++k) {
        const int64_t* term = use(ins_[k], reduction.held_by(k), index, member);
        if (term != nullptr) terms.push_back(*term);
      }
      const int64_t result = fold(terms);
      for (int k = 0; k < size(); ++k) {
        const int own = c.replicas().empty() ? member : c.replicas()[0];
        const bool is_wanted = reduction.target == Target::kAll ||
                               k == (reduction.target == Target::kRoot ? c.root() : own);
        if (is_wanted) write(member, k, index, &result);
      }
    });
  }
  void write(int member, int owner, const std::vector<int64_t>& index, const int64_t* from) {
    int64_t* const to = use(outs_[owner], members_[member]->out_box(), index, member);
    if (from != nullptr && to != nullptr) *to = *from;
  }

  // The last part of invariant 2.
  void expect_in_place(int member) const {
    const Collective::InPlace& rule = members_[member]->in_place();
    const Memory& in = ins_[member];
    const Memory& out = outs_[member];
    if (rule.rule == Collective::InPlace::Rule::kAnywhere) {
      EXPECT_TRUE(was_untouched(in) || was_untouched(out));
    }
    if (rule.rule != Collective::InPlace::Rule::kExactly) return;
    for (size_t i = rule.in_offset, k = rule.out_offset;
         i < in.users.size() && k < out.users.size(); ++i, ++k) {
      if (out.kept.count(static_cast<int64_t>(k)) > 0) continue;
      for (const int writer : out.users[k]) EXPECT_TRUE(is_only(in.users[i], writer));
    }
  }
  static bool was_untouched(const Memory& memory) {
    const auto is_unused = [](const std::set<int>& users) { return users.empty(); };
    return std::all_of(memory.users.begin(), memory.users.end(), is_unused);
  }

  const Collectives members_;
  std::vector<Memory> ins_;
  std::vector<Memory> outs_;
  std::vector<std::vector<BoxPull>> all_pulls_;
  std::string fault_;
};

// The Collectives of all members by `make(place)`.
template <class Make>
Collectives for_all(int num_members, Make make) {
  Collectives result;
  for (int m = 0; m < num_members; ++m) {
    const StatusOr<Collective::Ptr> c = make(GroupPlace{num_members, m});
    EXPECT_THAT(c, IsOk());
    result.push_back(c.value());
  }
  return result;
}

Collectives for_all(int num_members, const CollectiveSpec& spec) {
  return for_all(num_members, [&](GroupPlace place) { return Collective::make(place, spec); });
}

// The memory of `members`: the sizes that a Collective asks for, and `other` where any size will
// do.
Played play(const Collectives& members, int64_t other = 0) {
  Values ins;
  Values outs;
  for (const Collective::Ptr& c : members) {
    ins.push_back(c->in_count().value_or(c->access().is_input_read ? other : 0));
    outs.push_back(c->out_count().value_or(other));
  }
  return Played(members, ins, outs);
}

Values all_of(int member, int64_t first, int64_t count) {
  Values values;
  for (int64_t i = 0; i < count; ++i) values.push_back(value(member, first + i));
  return values;
}
Values sums(int num_members, int64_t first, int64_t count) {
  Values values;
  for (int64_t i = first; i < first + count; ++i) {
    Values terms;
    for (int m = 0; m < num_members; ++m) terms.push_back(value(m, i));
    values.push_back(fold(terms));
  }
  return values;
}

// Every list of `size` numbers from 0 to `most`.
std::vector<Values> all_lists(int size, int64_t most) {
  std::vector<Values> lists = {{}};
  for (int i = 0; i < size; ++i) {
    std::vector<Values> longer;
    for (const Values& list : lists) {
      for (int64_t next = 0; next <= most; ++next) {
        longer.push_back(list);
        longer.back().push_back(next);
      }
    }
    lists = std::move(longer);
  }
  return lists;
}

int64_t sum_before(const Values& counts, size_t member) {
  return std::accumulate(counts.begin(), counts.begin() + member, int64_t{0});
}

// Counts around the lines of memory at which all_reduce and reduce are cut.
constexpr int64_t kCounts[] = {0, 1, 2, 7, 8, 9, 63, 64, 65, 129, 200};
constexpr DType kDTypes[] = {DType::kUint8, DType::kFloat64};
constexpr int kMostMembers = 5;

TEST(CollectiveTest, ReductionsOfTheWhole) {
  for (int n = 1; n <= kMostMembers; ++n) {
    for (const DType dtype : kDTypes) {
      for (const int64_t count : kCounts) {
        const Played all =
            play(for_all(n, {.kind = OpKind::kAllReduce, .dtype = dtype, .count = count}));
        all.expect_in_order();
        for (int m = 0; m < n; ++m) EXPECT_EQ(all.out(m), sums(n, 0, count));
        for (int root = 0; root < n; ++root) {
          const Played one = play(
              for_all(n, {.kind = OpKind::kReduce, .dtype = dtype, .root = root, .count = count}),
              count);
          one.expect_in_order();
          for (int m = 0; m < n; ++m) {
            EXPECT_EQ(one.out(m), m == root ? sums(n, 0, count) : Values(count, kUntouched));
          }
        }
      }
    }
  }
}

TEST(CollectiveTest, AllReduceOfOneSharedOutput) {
  for (int n = 2; n <= kMostMembers; ++n) {
    std::vector<int> all(n);
    std::iota(all.begin(), all.end(), 0);
    const Played shared =
        play(for_all(n, {.kind = OpKind::kAllReduce, .count = 300, .replicas = all}));
    shared.expect_in_order();
    EXPECT_EQ(shared.out(0), sums(n, 0, 300));
  }
}

TEST(CollectiveTest, BroadcastAndBarrierAndMessage) {
  for (const int64_t count : kCounts) {
    for (int n = 1; n <= kMostMembers; ++n) {
      for (int root = 0; root < n; ++root) {
        const Played copies =
            play(for_all(n, {.kind = OpKind::kBroadcast, .root = root, .count = count}));
        copies.expect_in_order();
        for (int m = 0; m < n; ++m) EXPECT_EQ(copies.out(m), all_of(root, 0, count));
      }
      const Played barrier = play(
          for_all(n, {.kind = OpKind::kBarrier, .dtype = DType::kInt32, .count = count}), count);
      barrier.expect_in_order();
      for (int m = 0; m < n; ++m) EXPECT_EQ(barrier.out(m), sums(n, 0, count));
    }
    const Collectives ends =
        for_all(2, {.kind = OpKind::kSendRecv, .dtype = DType::kInt64, .count = count});
    const Played message(ends, {count, 0}, {0, count});
    message.expect_in_order();
    EXPECT_EQ(message.out(1), all_of(0, 0, count));
  }
}

TEST(CollectiveTest, PartsOfEveryCombinationOfSizes) {
  int checked = 0;
  for (int n = 1; n <= kMostMembers; ++n) {
    for (const Values& counts : all_lists(n, n == kMostMembers ? 2 : 3)) {
      Values joined;
      for (int m = 0; m < n; ++m) {
        const Values part = all_of(m, 0, counts[m]);
        joined.insert(joined.end(), part.begin(), part.end());
      }
      const Played all = play(for_all(
          n, {.kind = OpKind::kAllGather, .dtype = DType::kInt32, .counts = Counts::of(counts)}));
      all.expect_in_order();
      const Played scattered = play(for_all(n, {.kind = OpKind::kReduceScatter,
                                                .dtype = DType::kInt32,
                                                .op = ReduceOp::kMax,
                                                .counts = Counts::of(counts)}));
      scattered.expect_in_order();
      const int root = checked % n;
      const Played gathered = play(for_all(n, {.kind = OpKind::kGather,
                                               .dtype = DType::kInt8,
                                               .root = root,
                                               .counts = Counts::of(counts)}));
      gathered.expect_in_order();
      const Played dealt = play(for_all(n, {.kind = OpKind::kScatter,
                                            .dtype = DType::kInt8,
                                            .root = root,
                                            .counts = Counts::of(counts)}));
      dealt.expect_in_order();
      for (int m = 0; m < n; ++m) {
        EXPECT_EQ(all.out(m), joined);
        EXPECT_EQ(gathered.out(m), m == root ? joined : Values());
        EXPECT_EQ(scattered.out(m), sums(n, sum_before(counts, m), counts[m]));
        EXPECT_EQ(dealt.out(m), all_of(root, sum_before(counts, m), counts[m]));
      }
      ++checked;
    }
  }
  EXPECT_GT(checked, 500);
}

void expect_all_to_all(const std::vector<Values>& sent) {
  const int n = static_cast<int>(sent.size());
  const Played parts = play(for_all(n, [&](GroupPlace place) {
    Values received;
    for (const Values& of_source : sent) received.push_back(of_source[place.position]);
    return Collective::make(place, {.kind = OpKind::kAllToAll,
                                    .dtype = DType::kInt32,
                                    .counts = Counts::of(sent[place.position]),
                                    .received_counts = Counts::of(received)});
  }));
  for (int m = 0; m < n; ++m) {
    Values expected;
    for (int source = 0; source < n; ++source) {
      const Values part = all_of(source, sum_before(sent[source], m), sent[source][m]);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    EXPECT_EQ(parts.out(m), expected);
  }
  parts.expect_in_order();
}

CollectiveSpec all_to_all(DType dtype, const Counts& parts) {
  return {.kind = OpKind::kAllToAll,
          .dtype = dtype,
          .count = parts.sum(),
          .counts = parts,
          .received_counts = parts};
}

TEST(CollectiveTest, AllToAll) {
  for (int n = 1; n <= kMostMembers; ++n) {
    for (int64_t part = 0; part <= 3; ++part) {
      const Collectives members = for_all(n, all_to_all(DType::kInt32, Counts::equal(n, part)));
      EXPECT_EQ(members[0]->needs_peer_counts(), part == 0);
      const Played equal = play(members);
      equal.expect_in_order();
      for (int m = 0; m < n; ++m) {
        Values expected;
        for (int source = 0; source < n; ++source) {
          const Values values = all_of(source, m * part, part);
          expected.insert(expected.end(), values.begin(), values.end());
        }
        EXPECT_EQ(equal.out(m), expected);
      }
    }
  }
  for (const Values& counts : all_lists(4, 3)) {
    expect_all_to_all({{counts[0], counts[1]}, {counts[2], counts[3]}});
  }
  for (const Values& c : all_lists(9, 1)) {
    expect_all_to_all({{c[0], c[1], c[2]}, {c[3], c[4], c[5]}, {c[6], c[7], c[8]}});
  }
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<Values> sent(4 + round % 2, Values(4 + round % 2));
    for (Values& of_member : sent) {
      for (int64_t& count : of_member) count = static_cast<int64_t>(random() % 4);
    }
    expect_all_to_all(sent);
  }
}

// With more members than a list of parts is kept for.
TEST(CollectiveTest, PartsOfManyMembers) {
  constexpr int kMany = 70;
  Values counts(kMany, 1);
  counts[3] = 0;
  Values joined;
  for (int m = 0; m < kMany; ++m) {
    if (m != 3) joined.push_back(value(m, 0));
  }
  const Played all = play(for_all(
      kMany, {.kind = OpKind::kAllGather, .dtype = DType::kInt8, .counts = Counts::of(counts)}));
  all.expect_in_order();
  const Played parts = play(for_all(kMany, all_to_all(DType::kInt8, Counts::equal(kMany, 2))));
  parts.expect_in_order();
  for (int m = 0; m < kMany; ++m) {
    EXPECT_EQ(all.out(m), joined);
    for (int64_t i = 0; i < 2 * kMany; ++i) {
      ASSERT_EQ(parts.out(m)[i], value(static_cast<int>(i / 2), 2 * m + i % 2));
    }
  }
}

TEST(CollectiveTest, AllToAllOfDifferentCountsFailsAlikeForAllMembers) {
  const auto first = Collective::make({2, 0}, {.kind = OpKind::kAllToAll,
                                               .dtype = DType::kInt8,
                                               .counts = Counts::of({1, 2}),
                                               .received_counts = Counts::of({1, 3})});
  const auto second = Collective::make({2, 1}, {.kind = OpKind::kAllToAll,
                                                .dtype = DType::kInt8,
                                                .counts = Counts::of({4, 1}),
                                                .received_counts = Counts::of({2, 1})});
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(second, IsOk());
  const Values counts[] = {own_counts(**first), own_counts(**second)};
  const int64_t* const pointers[] = {counts[0].data(), counts[1].data()};
  for (const Collective::Ptr& c : {*first, *second}) {
    std::vector<BoxPull> made;
    EXPECT_THAT(c->pulls(pointers, made),
                StatusIs(kInvalid,
                         "member 1 sends 4 elements to member 0, which expects 3; make the counts "
                         "of both equal"));
  }
}

// A box in [0:6, 0:6] that contains `inner`.
Box random_box(const Box& inner, std::mt19937& random) {
  Box box = inner;
  for (int dim = 0; dim < 2; ++dim) {
    const auto before = static_cast<int64_t>(random() % (inner.offsets[dim] + 1));
    const int64_t after = 6 - inner.offsets[dim] - inner.sizes[dim];
    box.offsets[dim] -= before;
    box.sizes[dim] += before + static_cast<int64_t>(random() % (after + 1));
  }
  return box;
}
int64_t element(const Box& held, int member, const std::vector<int64_t>& index) {
  return value(member, place_in(held, index));
}

// Each element that a member wants is pulled from a member that holds it, if any member does.
TEST(CollectiveTest, ExchangesOfRandomBoxes) {
  std::mt19937 random(7);
  int pulled = 0;
  for (int round = 0; round < 300; ++round) {
    const int n = 1 + round % kMostMembers;
    std::vector<BoxExchange> boxes(n);
    for (BoxExchange& own : boxes) {
      own.in_box = random_box({{2, 3}, {1, 0}}, random);
      own.out_box = random_box({{3, 2}, {0, 2}}, random);
    }
    std::vector<Values> expected(n);
    for (int m = 0; m < n; ++m) {
      std::vector<BoxPull> pulls;
      for_each_index(boxes[m].out_box, [&](const std::vector<int64_t>& index) {
        const Box one = {index, {1, 1}};
        const int source = static_cast<int>(random() % n);
        const bool is_held = contains(boxes[source].in_box, one);
        expected[m].push_back(is_held ? element(boxes[source].in_box, source, index) : kUntouched);
        if (is_held) pulls.push_back({source, boxes[source].in_box, one});
        pulled += is_held ? 1 : 0;
      });
      boxes[m].pulls = std::move(pulls);
    }
    const Played exchange = play(for_all(n, [&](GroupPlace place) {
      return Collective::make(
          place,
          {.kind = OpKind::kExchange, .dtype = DType::kFloat64, .boxes = &boxes[place.position]});
    }));
    exchange.expect_in_order();
    for (int m = 0; m < n; ++m) EXPECT_EQ(exchange.out(m), expected[m]);
  }
  EXPECT_GT(pulled, 1000);
}

TEST(CollectiveTest, ReductionsOfRandomBoxes) {
  std::mt19937 random(11);
  const Box common = {{2, 2}, {2, 2}};
  for (int round = 0; round < 300; ++round) {
    const int n = 1 + round % kMostMembers;
    std::vector<Box> held;
    std::vector<Box> wanted;
    for (int m = 0; m < n; ++m) {
      held.push_back(random_box(common, random));
      wanted.push_back(intersect(common, random_box({{3, 3}, {0, 1}}, random)));
    }
    const Collectives members = for_all(n, [&](GroupPlace place) {
      const Box& out_box = wanted[place.position];
      std::vector<BoxPull> pulls;
      for (int k = 0; k < n; ++k) pulls.push_back({k, held[k], out_box});
      const BoxExchange boxes = {
          .in_box = held[place.position], .out_box = out_box, .pulls = std::move(pulls)};
      return Collective::make(
          place, {.kind = OpKind::kReduceBoxes, .dtype = DType::kFloat64, .boxes = &boxes});
    });
    const Played sum = play(members);
    sum.expect_in_order();
    for (int m = 0; m < n; ++m) {
      Values expected;
      for_each_index(wanted[m], [&](const std::vector<int64_t>& index) {
        Values terms;
        for (int k = 0; k < n; ++k) terms.push_back(element(held[k], k, index));
        expected.push_back(fold(terms));
      });
      EXPECT_EQ(sum.out(m), expected);
    }
  }
}

// Specs that make() refuses.
struct WrongCase {
  const char* name;
  StatusOr<Collective::Ptr> made;
  const char* message;
};
std::vector<WrongCase> wrong_cases() {
  const auto make = [](const CollectiveSpec& spec) { return Collective::make({2, 0}, spec); };
  const auto with_boxes = [](const BoxExchange& boxes, GroupPlace place) {
    return Collective::make(place, {.kind = OpKind::kExchange, .boxes = &boxes});
  };
  const auto exchange = [&](const Box& in, const Box& out, std::vector<BoxPull> pulls) {
    return with_boxes({in, out, BoxPulls(std::move(pulls))}, {2, 0});
  };
  const auto fill = [&](const Box& out, ReduceOp op, GroupPlace place) {
    return with_boxes({.in_box = {{0}, {0}}, .out_box = out, .fill = op}, place);
  };
  const Box four = {{0}, {4}};
  const BoxExchange one_term = {four, four, std::vector<BoxPull>{{0, four, four}}};
  return {
      {"dtype", make({.kind = OpKind::kBroadcast, .dtype = static_cast<DType>(99), .count = 1}),
       "DType(99)"},
      {"reduction", make({.kind = OpKind::kAllReduce, .op = ReduceOp::kAvg, .count = 1}), "avg"},
      {"root", make({.kind = OpKind::kReduce, .root = 2, .count = 1}),
       "root 2 is not a member; the group has 0 to 1"},
      {"negative_root", make({.kind = OpKind::kGather, .root = -1, .counts = Counts::equal(2, 1)}),
       "root -1 is not a member; the group has 0 to 1"},
      {"negative_count", make({.kind = OpKind::kBroadcast, .count = -1}),
       "count is -1; a count is 0 or more"},
      {"too_many_bytes", make({.kind = OpKind::kSendRecv, .dtype = DType::kFloat64, .count = kMax}),
       "count is 9223372036854775807 elements of f64, more than 2^63 - 1 bytes; use a smaller "
       "count"},
      {"counts_of_fewer", make({.kind = OpKind::kAllGather, .counts = Counts::equal(3, 1)}),
       "counts has 3 entries, and the group has 2 members; give one for each"},
      {"negative_counts", make({.kind = OpKind::kScatter, .counts = Counts::of({4, -1})}),
       "counts[1] is -1; a count is 0 or more"},
      {"too_many_counts",
       make({.kind = OpKind::kAllToAll,
             .counts = Counts::equal(2, 0),
             .received_counts = Counts::of({1, kMax})}),
       "counts 1, 9223372036854775807 are more elements than a 64-bit integer counts; use smaller "
       "counts"},
      {"too_many_bytes_of_counts",
       make({.kind = OpKind::kReduceScatter,
             .dtype = DType::kFloat64,
             .counts = Counts::of({1, kMax / 8})}),
       "count is 1152921504606846976 elements of f64, more than 2^63 - 1 bytes"},
      {"rank", exchange({{0, 0}, {4}}, four, {}),
       "a box has 2 offsets and 1 sizes; give one of each for every dim"},
      {"end", exchange(four, {{kMax}, {4}}, {}),
       "a box has offset 9223372036854775807 and size 4 in dim 0, whose sum exceeds 64 bits; use a "
       "smaller offset"},
      {"source", exchange(four, four, {{2, four, four}}),
       "a pull names member 2; the group has 0 to 1"},
      {"outside", exchange(four, four, {{1, {{0}, {2}}, four}}),
       "box [0:4] is not inside both its source [0:2] and its target [0:4]"},
      {"terms", make({.kind = OpKind::kReduceBoxes, .boxes = &one_term}),
       "boxes of 1 members given, and the group has 2"},
      {"fill", fill(four, ReduceOp::kSum, {2, 0}),
       "fill is of an exchange in a group of one, and the group has 2"},
      {"fill_by_no_reduction", fill(four, ReduceOp::kAvg, {}), "avg is not defined for integers"},
  };
}

TEST(CollectiveTest, WrongArgumentsAreRefused) {
  for (const WrongCase& wrong : wrong_cases()) {
    EXPECT_THAT(wrong.made, StatusIs(kInvalid, ::testing::HasSubstr(wrong.message))) << wrong.name;
  }
}

}  // namespace
}  // namespace tessera
