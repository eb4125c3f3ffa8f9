// SPDX-License-Identifier: Apache-2.0
//
// Connections between clients of two hosts that break while both clients live: a call under way
// fails with one text, and later calls work. Clients 0 and 1 are on one host, client 2 on another.
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/span/letters.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/clients.h"
#include "tests/support/expect_error.h"
#include "tests/support/matchers.h"
#include "tests/support/verdicts.h"
#include "transport/engine.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;
using transport::Engine;

// Beyond the deadline of every test.
constexpr absl::Duration kNever = absl::Hours(1);
constexpr int kMostDescriptors = 1024;
constexpr char kBroken[] = "the connection to client ";
constexpr char kRepeat[] = "; it is made again for later calls: repeat this call on every client";

// The connected TCP sockets of this process.
std::set<int> find_sockets() {
  std::set<int> sockets;
  for (int fd = 0; fd < kMostDescriptors; ++fd) {
    sockaddr_in peer = {};
    socklen_t size = sizeof peer;
    const bool is_connected = getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0;
    if (is_connected && (peer.sin_family == AF_INET || peer.sin_family == AF_INET6)) {
      sockets.insert(fd);
    }
  }
  return sockets;
}

// A job of two hosts, and a client of the second one whose connections break. The first client of a
// host receives the entries of the other host, and the other clients read its postings.
struct Form {
  Backend backend;
  int num_clients;
  int breaking;

  std::string to_string() const {
    return absl::StrCat(backend_name(backend), "_", num_clients, "_clients_", breaking);
  }
};
std::vector<Form> forms() {
  std::vector<Form> forms = {
      {Backend::kUcx, 3, 2}, {Backend::kUcx, 4, 2}, {Backend::kUcx, 4, 3}, {Backend::kUcx, 6, 4}};
#ifdef TESSERA_TESTS_HAVE_GLOO
  forms.push_back({Backend::kGloo, 3, 2});
#endif
  return forms;
}

// The connections between the clients of a job whose clients are threads: only connections made
// later than the first engine, when all clients have reached the coordinator.
class Connections {
 public:
  JobSpec job(const Form& form) {
    JobSpec spec = {.num_clients = form.num_clients,
                    .hooks = {.host_ids = on_hosts(form.num_clients, 2)}};
    spec.options.backend = form.backend;
    spec.hooks.wrap_engine = [this](std::unique_ptr<Engine> engine) {
      std::call_once(once_, [this] { of_coordinator_ = find_sockets(); });
      return StatusOr<std::unique_ptr<Engine>>(std::move(engine));
    };
    return spec;
  }

  // Ends the first connection, or all, as a reset does: both ends are told by the kernel. How many
  // sockets had to be ended.
  int reset(bool all) const {
    int num_ended = 0;
    for (const int fd : find_sockets()) {
      if (of_coordinator_.count(fd) > 0) continue;
      num_ended += shutdown(fd, SHUT_RDWR) == 0 ? 1 : 0;
      if (!all) break;
    }
    return num_ended;
  }

 private:
  std::once_flag once_;
  std::set<int> of_coordinator_;
};

// Not twice in a row: a reset of a socket that Gloo is about to accept is an exception on a thread
// of Gloo, which ends the process.
enum class Break { kNone, kOne, kAll };
Break break_in(int call) {
  if (call == 3 || call == 8) return Break::kOne;
  return call == 15 || call == 19 ? Break::kAll : Break::kNone;
}
// A client that learns of the break late fails its next call. A client that is behind may have told
// other hosts of a call by a connection that the other client then breaks, and fails that call.
bool may_fail(int call) {
  for (int broken = std::max(call - 1, 0); broken <= call + 1; ++broken) {
    if (break_in(broken) != Break::kNone) return true;
  }
  return false;
}
constexpr int kCalls = 25;
constexpr int64_t kLargeCount = 1 << 20;

class ConnectionsTest : public ::testing::TestWithParam<Form> {};
INSTANTIATE_TEST_SUITE_P(Forms, ConnectionsTest, ::testing::ValuesIn(forms()),
                         [](const auto& info) { return info.param.to_string(); });

// Every client makes every call, also after a failed call.
TEST_P(ConnectionsTest, AreMadeAgainForLaterCalls) {
  const Form& form = GetParam();
  Connections connections;
  Verdicts verdicts[kCalls];
  const auto body = [&](Client& client) -> Status {
    const int id = client.client_id();
    std::vector<int> devices(form.num_clients);
    std::iota(devices.begin(), devices.end(), 0);
    TESSERA_ASSIGN_OR_RETURN(const Group group, client.group(devices));
    for (int call = 0; call < kCalls; ++call) {
      // Small inputs are in the letters; large ones go in blocks.
      std::vector<float> data(call % 2 == 0 ? 8 : kLargeCount, static_cast<float>(id + call));
      const Work work = group.all_reduce<float>(data, absl::MakeSpan(data), ReduceOp::kSum);
      const Break broken = break_in(call);
      if (broken != Break::kNone && id == form.breaking) {
        TESSERA_REQUIRE(connections.reset(broken == Break::kAll) > 0, call);
      }
      const Status status = work.wait(kNever);
      if (status.ok()) {
        const int n = form.num_clients;
        const auto sum = static_cast<float>(n * call + n * (n - 1) / 2);
        for (const float value : data) TESSERA_REQUIRE(value == sum, call, ": ", value);
        continue;
      }
      verdicts[call].add(id, status).IgnoreError();
      TESSERA_REQUIRE(may_fail(call), call, ": ", status.ToString());
      TESSERA_RETURN_IF_ERROR(
          expect_error(status, StatusCode::kUnavailable, {"all_reduce", kBroken, kRepeat}));
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(run_clients(connections.job(form), body), IsOk());
  // A client that had its result keeps it.
  for (Verdicts& verdict : verdicts) EXPECT_THAT(verdict.same_of_those_told(), IsOk());
}

// Loses a letter with entries of members 0 and 1 where `is_armed`, and breaks the connection then:
// the other end is told by its library.
class LosingEngine final : public Engine {
 public:
  LosingEngine(std::unique_ptr<Engine> engine, std::atomic<bool>& is_armed,
               std::function<void()> on_lost)
      : engine_(std::move(engine)), is_armed_(is_armed), on_lost_(std::move(on_lost)) {}
  ~LosingEngine() override { stop(); }

  Status connect(absl::Span<const int> clients, absl::Time deadline) override {
    return engine_->connect(clients, deadline);
  }
  Status connect_all(absl::Span<const int> clients, absl::Time deadline) override {
    return engine_->connect_all(clients, deadline);
  }
  void send(int client, transport::Tag tag, absl::Span<const std::byte> bytes, Keeper keeper,
            Done done) override {
    if (tag != kLetters || !is_of_first_host(bytes) || !is_armed_.exchange(false)) {
      return engine_->send(client, tag, bytes, std::move(keeper), std::move(done));
    }
    // A letter without the word of the job is dropped where it comes.
    auto lost = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
    std::fill_n(lost->begin() + kWordAt, sizeof(uint64_t), std::byte{0});
    engine_->send(client, tag, *lost, lost,
                  [this, client, done = std::move(done)](const Status& status) mutable {
                    done(status);
                    const Status reason = absl::UnavailableError(
                        absl::StrCat(kBroken, client, " is broken: reset by the test"));
                    engine_->cut(client, reason);
                    listener_(client, reason);
                    on_lost_();
                  });
  }
  void receive(int client, transport::Tag tag, absl::Span<std::byte> bytes, Keeper keeper,
               Done done) override {
    engine_->receive(client, tag, bytes, std::move(keeper), std::move(done));
  }
  void cut(int client, const Status& reason) override { engine_->cut(client, reason); }
  void wait(Wait& wait, absl::Duration limit) override { engine_->wait(wait, limit); }
  void wake(Wait& wait) override { engine_->wake(wait); }
  void set_lost_listener(LostListener listener) override {
    listener_ = listener;
    engine_->set_lost_listener(std::move(listener));
  }
  void stop() override { engine_->stop(); }

 private:
  static constexpr transport::Tag kLetters = 0;
  // A letter begins with a message of kPageBytes. The sender and the word are at these places in
  // it.
  static constexpr size_t kPageBytes = 256;
  static constexpr size_t kFromAt = 16;
  static constexpr size_t kWordAt = 32;

  static bool is_of_first_host(absl::Span<const std::byte> bytes) {
    if (bytes.size() != kPageBytes) return false;
    span::Letter::Kind kind = {};
    int32_t from = 0;
    std::memcpy(&kind, bytes.data(), sizeof(kind));
    std::memcpy(&from, bytes.data() + kFromAt, sizeof(from));
    return kind == span::Letter::Kind::kEntries && from < 2;
  }

  const std::unique_ptr<Engine> engine_;
  std::atomic<bool>& is_armed_;
  const std::function<void()> on_lost_;
  LostListener listener_;
};

// The client that would have got the letter has not begun the call, and begins it with connections
// that are up again. Mostly the letter is of client 1, which reads what client 0 posts for it. Both
// get the entries of the other host, and all clients get the same.
TEST(LostLettersTest, ACallWhoseLetterIsLostEndsForAll) {
  constexpr int kRounds = 8;
  constexpr int kClients = 4;
  std::atomic<bool> is_armed{false};
  // The other host begins a round when the letter of the first one is lost, or its call has ended.
  std::atomic<int> current{0};
  std::atomic<int> begun{0};
  const auto let_others_begin = [&] {
    begun = current.load();
    begun.notify_all();
  };
  JobSpec spec = {.num_clients = kClients, .hooks = {.host_ids = on_hosts(kClients, 2)}};
  spec.hooks.wrap_engine =
      [&](std::unique_ptr<Engine> engine) -> StatusOr<std::unique_ptr<Engine>> {
    return std::make_unique<LosingEngine>(std::move(engine), is_armed, let_others_begin);
  };
  std::barrier all(kClients);
  Verdicts verdicts[kRounds];
  const auto body = [&](Client& client) -> Status {
    const int id = client.client_id();
    const StatusOr<Mesh> mesh = create_mesh(client, {{"x", kClients}});
    Status result = mesh.status();
    int num_lost = 0;
    for (int round = 0; round < kRounds; ++round) {
      if (id == 0) current = round;
      if (id == 0) is_armed = round > 0;
      all.arrive_and_wait();
      for (int now = begun; id >= 2 && now < round; now = begun) begun.wait(now);
      const Status status = mesh.ok() ? mesh->barrier("step", kNever) : mesh.status();
      if (id < 2) let_others_begin();
      verdicts[round].add(id, status).IgnoreError();
      all.arrive_and_wait();
      num_lost += id == 0 && round > 0 && !is_armed ? 1 : 0;
      if (!status.ok()) {
        result.Update(expect_error(status, StatusCode::kUnavailable, {kBroken, kRepeat}));
      }
    }
    TESSERA_RETURN_IF_ERROR(result);
    TESSERA_REQUIRE(id > 0 || num_lost > 0, num_lost);
    for (Verdicts& verdict : verdicts) TESSERA_RETURN_IF_ERROR(verdict.same({0, 1, 2, 3}));
    return absl::OkStatus();
  };
  EXPECT_THAT(run_clients(spec, body), IsOk());
}

}  // namespace
}  // namespace tessera::testing
