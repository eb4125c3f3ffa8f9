// SPDX-License-Identifier: Apache-2.0
//
// How many messages go to the other host for a small operation: a letter from each host to each,
// whatever the number of clients, which is one message where it is of one member.
//
// $TESSERA_TEST_CLIENTS is the number of clients on each of two hosts.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/group.h"
#include "collectives/span/letters.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/clients.h"
#include "tests/support/matchers.h"
#include "tests/support/tensors.h"
#include "transport/engine.h"

namespace tessera::testing {
namespace {

using transport::Engine;

constexpr absl::Duration kTimeout = absl::Seconds(60);
// More than the records of a group: each is used after a relayout has used it.
constexpr int kRounds = 20;
// The letters of a barrier of two hosts: two, or more where two members of a host come at the same
// moment.
constexpr int kFew = 4;

// The counter of this client, which is a thread.
thread_local std::atomic<int>* own_count = nullptr;
// Letters with entries, of all clients.
std::atomic<int> num_letters{0};

// Counts the messages of letters with entries: the first one begins with the kind, and is followed
// by the rest of the letter.
class CountingEngine final : public Engine {
 public:
  explicit CountingEngine(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
  ~CountingEngine() override { stop(); }

  std::atomic<int>& num_messages() { return num_messages_; }

  Status connect(absl::Span<const int> clients, absl::Time deadline) override {
    return engine_->connect(clients, deadline);
  }
  Status connect_all(absl::Span<const int> clients, absl::Time deadline) override {
    return engine_->connect_all(clients, deadline);
  }
  void send(int client, transport::Tag tag, absl::Span<const std::byte> bytes, Keeper keeper,
            Done done) override {
    constexpr transport::Tag kLetters = 0;
    constexpr size_t kPageBytes = 256;
    // Other letters are sent where the machine is slow.
    if (tag == kLetters && bytes.size() == kPageBytes) {
      span::Letter::Kind kind = {};
      std::memcpy(&kind, bytes.data(), sizeof(kind));
      is_entry_ = kind == span::Letter::Kind::kEntry || kind == span::Letter::Kind::kEntries;
      if (is_entry_) ++num_letters;
    }
    if (tag == kLetters && is_entry_) ++num_messages_;
    engine_->send(client, tag, bytes, std::move(keeper), std::move(done));
  }
  void receive(int client, transport::Tag tag, absl::Span<std::byte> bytes, Keeper keeper,
               Done done) override {
    engine_->receive(client, tag, bytes, std::move(keeper), std::move(done));
  }
  void cut(int client, const Status& reason) override { engine_->cut(client, reason); }
  void wait(Wait& wait, absl::Duration limit) override { engine_->wait(wait, limit); }
  void wake(Wait& wait) override { engine_->wake(wait); }
  void set_lost_listener(LostListener listener) override {
    engine_->set_lost_listener(std::move(listener));
  }
  void stop() override { engine_->stop(); }

 private:
  const std::unique_ptr<Engine> engine_;
  std::atomic<int> num_messages_{0};
  bool is_entry_ = false;  // guarded by the lock under which Letters sends
};

StatusOr<std::unique_ptr<Engine>> count_messages(std::unique_ptr<Engine> engine) {
  auto counting = std::make_unique<CountingEngine>(std::move(engine));
  own_count = &counting->num_messages();
  return counting;
}

// The entry of a relayout has the text of the layouts; the entry of an all_reduce does not.
TEST(MessagesTest, ASmallAllReduceAfterRelayoutsIsOneForEachMember) {
  JobSpec spec = {.num_clients = 2, .hooks = {.host_ids = on_hosts(2, 2)}};
  spec.hooks.wrap_engine = count_messages;
  const auto body = [](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"a_long_name_of_an_axis", 2}}));
    TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1}));
    TESSERA_ASSIGN_OR_RETURN(const Layout split,
                             Layout::parse(mesh, "[a_long_name_of_an_axis, -, -, -]"));
    TESSERA_ASSIGN_OR_RETURN(const Layout whole, Layout::parse(mesh, "[-, -, -, -]"));
    for (int i = 0; i < kRounds; ++i) {
      const DTensor x = iota<float>({4, 1, 1, 1}, split);
      TESSERA_RETURN_IF_ERROR(expect_iota<float>(relayout(x, whole)));
    }
    for (int i = 0; i < kRounds; ++i) {
      std::vector<float> data(1, 1.0f);
      const int before = *own_count;
      TESSERA_RETURN_IF_ERROR(
          group.all_reduce<float>(data, absl::MakeSpan(data), ReduceOp::kSum).wait(kTimeout));
      const int num_messages = *own_count - before;
      TESSERA_REQUIRE(num_messages == 1, "call ", i, ": ", num_messages);
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(run_clients(spec, body), IsOk());
}

// Where members arrive within 5 ms of each other, the last one of each host sends for all. Members
// that arrived before a late one are sent together. So there is at most one letter for each member,
// instead of one to each client of the other host.
TEST(MessagesTest, ABarrierIsALetterFromEachHost) {
  const char* const asked = std::getenv("TESSERA_TEST_CLIENTS");
  const int num_here = asked == nullptr ? 6 : std::max(1, std::atoi(asked));
  const int num_clients = 2 * num_here;
  JobSpec spec = {.num_clients = num_clients, .hooks = {.host_ids = on_hosts(num_clients, 2)}};
  spec.hooks.wrap_engine = count_messages;
  std::barrier all(num_clients);
  const auto body = [&](Client& client) -> Status {
    const StatusOr<Mesh> mesh = create_mesh(client, {{"x", num_clients}});
    Status status = mesh.status();
    // Makes the groups: a client that has none yet would ask for letters to the others of its host.
    if (status.ok()) status = mesh->barrier("start", kTimeout);
    std::vector<int> counts;
    // On a machine under load all members seldom come so close to each other.
    const auto has_few = [&] { return *std::min_element(counts.begin(), counts.end()) <= kFew; };
    while (counts.size() < kRounds || (!has_few() && counts.size() < 50 * kRounds)) {
      all.arrive_and_wait();
      const int before = num_letters;
      all.arrive_and_wait();
      if (status.ok()) status = mesh->barrier("step", kTimeout);
      all.arrive_and_wait();
      counts.push_back(num_letters - before);
    }
    TESSERA_RETURN_IF_ERROR(status);
    std::sort(counts.begin(), counts.end());
    const int most = counts.back();
    TESSERA_REQUIRE(counts.front() <= kFew && most <= num_clients, counts.front(), " to ", most);
    if (client.client_id() > 0) return status;
    std::cout << "letters of a barrier: " << counts.front() << ", median "
              << counts[counts.size() / 2] << ", most " << most << std::endl;
    return status;
  };
  EXPECT_THAT(run_clients(spec, body), IsOk());
}

}  // namespace
}  // namespace tessera::testing
