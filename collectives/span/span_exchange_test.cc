// SPDX-License-Identifier: Apache-2.0
//
// All members of an all_reduce, each of a client of its own, in one thread over an engine that
// matches sends with receives: every group of 2 to 5 members and every split over two hosts.
#include "collectives/span/span_exchange.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "collectives/span/span_sums.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera::span {
namespace {

using ::tessera::testing::IsOk;
using ::testing::Each;

// More than one block, and no multiple of one.
constexpr int64_t kElements = 100'001;
constexpr uint64_t kGroup = 7;

// The state that the engines of all clients share.
struct Wire {
  struct Send {
    std::vector<std::byte> bytes;
  };
  struct Receive {
    absl::Span<std::byte> bytes;
    transport::Engine::Done done;
  };
  using Line = std::tuple<int, int, transport::Tag>;  // from, to
  std::map<Line, std::deque<Send>> sends;
  std::map<Line, std::deque<Receive>> receives;

  void match(const Line& line) {
    while (!sends[line].empty() && !receives[line].empty()) {
      const Send send = std::move(sends[line].front());
      Receive receive = std::move(receives[line].front());
      sends[line].pop_front();
      receives[line].pop_front();
      ASSERT_EQ(send.bytes.size(), receive.bytes.size());
      std::memcpy(receive.bytes.data(), send.bytes.data(), send.bytes.size());
      receive.done(absl::OkStatus());
    }
  }
};

class FakeEngine final : public transport::Engine {
 public:
  FakeEngine(Wire& wire, int self) : wire_(wire), self_(self) {}

  void send(int client, transport::Tag tag, absl::Span<const std::byte> bytes, Keeper,
            Done done) override {
    const Wire::Line line = {self_, client, tag};
    wire_.sends[line].push_back({{bytes.begin(), bytes.end()}});
    wire_.match(line);
    done(absl::OkStatus());
  }
  void receive(int client, transport::Tag tag, absl::Span<std::byte> bytes, Keeper,
               Done done) override {
    const Wire::Line line = {client, self_, tag};
    wire_.receives[line].push_back({bytes, std::move(done)});
    wire_.match(line);
  }
  Status connect(absl::Span<const int>, absl::Time) override { return absl::OkStatus(); }
  Status connect_all(absl::Span<const int>, absl::Time) override { return absl::OkStatus(); }
  void cut(int, const Status&) override {}
  void wait(Wait&, absl::Duration) override {}
  void wake(Wait&) override {}
  void set_lost_listener(LostListener) override {}
  void stop() override {}

 private:
  Wire& wire_;
  const int self_;
};

// One member. Its client has the number of its position.
class Member {
 public:
  Member(Wire& wire, const std::vector<shm::GroupMember>& members, const Places& places, int self)
      : engine_(wire, self), letters_(engine_, /*word=*/3), members_(members), places_(places) {
    letters_.set_reader(kGroup, [this](const Letter& letter) {
      std::optional<Request> request = decode_request(letter.body);
      ASSERT_TRUE(request.has_value());
      asked_.push_back({letter.from, *std::move(request)});
    });
    for (const shm::GroupMember& other : members) {
      if (other.client_id != self) letters_.open(other.client_id);
    }
    collective = *Collective::make(
        {static_cast<int>(members.size()), self},
        {.kind = OpKind::kAllReduce, .dtype = DType::kFloat32, .count = kElements});
  }

  void ask(std::vector<Want> wants, SpanExchange::Step step) {
    wants_ = std::move(wants);
    fetched_.clear();
    for (const Want& want : wants_) fetched_.push_back(*stage(want.box));
    step_ = step;
    step_.wants = wants_;
    step_.fetched = fetched_;
    with_exchange([&](const SpanExchange& exchange) { exchange.ask(step_); });
  }
  Status serve() {
    Status status;
    with_exchange([&](const SpanExchange& exchange) {
      for (const Board::Asked& asked : std::exchange(asked_, {})) {
        status.Update(exchange.serve(step_, asked));
      }
    });
    return status;
  }
  // A request for more than the member holds.
  Status serve_wrong() {
    Board::Asked asked = {0, {}};
    const Box box = {{0}, {kElements + 1}};
    asked.request.parts.push_back({box, box, 9});
    Status status;
    with_exchange([&](const SpanExchange& exchange) { status = exchange.serve(step_, asked); });
    return status;
  }
  absl::Span<const Want> wants() const { return wants_; }
  absl::Span<std::byte* const> fetched() const { return fetched_; }

  Collective::Ptr collective;
  Transfers transfers;
  std::vector<float> in = std::vector<float>(kElements);
  std::vector<float> out = std::vector<float>(kElements);

 private:
  StatusOr<std::byte*> stage(const Box& box) {
    staged_.push_back(std::make_unique<std::vector<float>>(box.num_elements()));
    return reinterpret_cast<std::byte*>(staged_.back()->data());
  }
  template <class Body>
  void with_exchange(Body body) {
    const auto take_tag = [this] { return next_tag_++; };
    const auto begin = [this](Transfers::Kind kind, int client) -> transport::Engine::Done {
      transfers.begin(kind, client);
      return [this, kind, client](const Status& status) { transfers.end(kind, client, status); };
    };
    const auto stage_box = [this](const Box& box) { return stage(box); };
    body(SpanExchange({.engine = engine_,
                       .letters = letters_,
                       .group = kGroup,
                       .members = members_,
                       .places = places_,
                       .take_tag = take_tag,
                       .begin = begin,
                       .stage = stage_box},
                      *collective, /*seq=*/1, kElements, nullptr));
  }

  FakeEngine engine_;
  Letters letters_;
  const std::vector<shm::GroupMember>& members_;
  const Places& places_;
  transport::Tag next_tag_ = transport::kFirstTagOfRuns;
  std::vector<Board::Asked> asked_;
  std::vector<Want> wants_;
  std::vector<std::byte*> fetched_;
  std::vector<std::unique_ptr<std::vector<float>>> staged_;
  SpanExchange::Step step_;
};

// The inputs: element i of member m is m + i % 3.
void expect_sums(const std::vector<std::unique_ptr<Member>>& members) {
  const int n = static_cast<int>(members.size());
  for (int64_t i = 0; i < kElements; i += 9'973) {
    std::vector<float> sums;
    for (const auto& member : members) sums.push_back(member->out[i]);
    EXPECT_THAT(sums, Each(static_cast<float>(n * (n - 1) / 2 + n * (i % 3)))) << "element " << i;
  }
}

TEST(SpanExchangeTest, EveryMemberOfEverySplitGetsTheSum) {
  for (int n = 2; n <= 5; ++n) {
    for (unsigned split = 1; split + 1 < 1u << n; ++split) {
      SCOPED_TRACE(absl::StrCat(n, " members, split ", split));
      Wire wire;
      std::vector<shm::GroupMember> group;
      std::vector<int> hosts;
      for (int m = 0; m < n; ++m) {
        group.push_back({m, m, 0});
        hosts.push_back(static_cast<int>(split >> m & 1));
      }
      const Places places[2] = {Places(hosts, 0), Places(hosts, 1)};
      std::vector<std::unique_ptr<Member>> members;
      std::vector<MemberMemory> memory[2] = {std::vector<MemberMemory>(n),
                                             std::vector<MemberMemory>(n)};
      for (int m = 0; m < n; ++m) {
        members.push_back(std::make_unique<Member>(wire, group, places[hosts[m]], m));
        Member& member = *members.back();
        for (int64_t i = 0; i < kElements; ++i) member.in[i] = static_cast<float>(m + i % 3);
        MemberMemory& own = memory[hosts[m]][m];
        own.in = reinterpret_cast<const std::byte*>(member.in.data());
        own.out = reinterpret_cast<std::byte*>(member.out.data());
        own.in_count = kElements;
      }
      const auto exchange = [&](const auto& ask) {
        for (int m = 0; m < n; ++m) ask(*members[m], places[hosts[m]], memory[hosts[m]], m);
        for (const auto& member : members) EXPECT_THAT(member->serve(), IsOk());
        for (const auto& member : members) {
          EXPECT_TRUE(member->transfers.are_done());
          EXPECT_TRUE(member->transfers.awaited().empty());
        }
      };
      exchange([](Member& member, const Places& here, const std::vector<MemberMemory>& of, int m) {
        const Collective& collective = *member.collective;
        member.ask(wants_of_inputs(collective, {}, here),
                   {.held = of[m].in,
                    .summed = adds_by_host(collective) ? &of : nullptr,
                    .num_askers = num_askers_of_inputs(collective, here)});
      });
      std::vector<std::byte*> own_sums(n);
      for (int m = 0; m < n; ++m) {
        const Places& here = places[hosts[m]];
        const Collective& collective = *members[m]->collective;
        const Box& box = collective.reduction()->box;
        const int64_t offset = box.offsets[0] * static_cast<int64_t>(sizeof(float));
        std::vector<std::byte*> outs;
        for (const int other : here.by_host()[here.here()]) {
          outs.push_back(memory[hosts[m]][other].out + offset);
        }
        own_sums[m] = outs[0];
        if (!box.is_empty()) {
          add_terms(collective, here, memory[hosts[m]], members[m]->fetched(), outs);
        }
      }
      exchange([&](Member& member, const Places& here, const std::vector<MemberMemory>&, int m) {
        member.ask(wants_of_sums(*member.collective, here),
                   {.of_sums = true,
                    .held = own_sums[m],
                    .num_askers = num_askers_of_sums(*member.collective, here)});
      });
      for (int m = 0; m < n; ++m) {
        copy_sums(*members[m]->collective, places[hosts[m]], memory[hosts[m]], members[m]->wants(),
                  members[m]->fetched());
      }
      expect_sums(members);
    }
  }
}

TEST(SpanExchangeTest, ARequestForWhatTheMemberDoesNotHoldIsRefused) {
  Wire wire;
  const std::vector<shm::GroupMember> group = {{0, 0, 0}, {1, 1, 0}};
  const Places places({0, 1}, 0);
  Member member(wire, group, places, 0);
  member.ask({}, {});
  EXPECT_THAT(member.serve_wrong(),
              testing::StatusIs(absl::StatusCode::kInternal,
                                ::testing::HasSubstr("what the member does not hold")));
}

}  // namespace
}  // namespace tessera::span
