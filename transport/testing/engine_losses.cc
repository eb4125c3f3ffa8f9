// SPDX-License-Identifier: Apache-2.0
#include "transport/testing/engine_losses.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/forked.h"
#include "tests/support/sanitizers.h"
#include "transport/testing/outcomes.h"

namespace tessera::transport {
namespace {

constexpr size_t kLarge = (testing::kSanitized ? 16 : 64) << 20;

// A message of 8 bytes from the higher client of the two to the lower one.
Status pass(EngineMember& m, int peer, Tag tag, int64_t value) {
  Outcomes ends;
  int64_t memory = self(m) > peer ? value : 0;
  if (self(m) > peer) {
    m.engine.send(peer, tag, bytes_of(memory), nullptr, ends.next());
  } else {
    m.engine.receive(peer, tag, bytes_of(memory), nullptr, ends.next());
  }
  TESSERA_RETURN_IF_ERROR(ends.wait());
  TESSERA_REQUIRE(memory == value, memory);
  return absl::OkStatus();
}

Status require_all(Outcomes& ends, size_t count, const Status& expected) {
  const std::vector<Status> results = ends.all();
  TESSERA_REQUIRE(results.size() == count, results.size(), " of ", count, " operations ended");
  for (const Status& status : results) {
    TESSERA_REQUIRE(status == expected, status.ToString(), " instead of ", expected.ToString());
  }
  return absl::OkStatus();
}

// Both ends cut; the third client is not concerned.
Status cut_and_connect_again(EngineMember& m) {
  const Status reason = absl::UnavailableError("the group has failed");
  const Status later = absl::UnavailableError("a later reason");
  const int peer = 1 - self(m);
  for (int64_t round = 0; round < 3; ++round) {
    if (self(m) < 2) {
      // A message of this connection that is never received.
      int64_t old = -1;
      Outcomes sent, ends;
      m.engine.send(peer, 5, bytes_of(old), nullptr, sent.next());
      TESSERA_RETURN_IF_ERROR(sent.wait());
      int64_t memory[3];
      for (Tag tag = 6; tag < 9; ++tag) {
        m.engine.receive(peer, tag, bytes_of(memory[tag - 6]), nullptr, ends.next());
      }
      TESSERA_RETURN_IF_ERROR(barrier(m, "posted", {0, 1}));
      m.engine.cut(peer, reason);
      m.engine.cut(peer, later);
      m.engine.send(peer, 5, bytes_of(old), nullptr, ends.next());
      // The peer's engine may have told of the cut first, where this end is not the first.
      const std::vector<Status> results = ends.all();
      TESSERA_REQUIRE(results.size() == 4, results.size());
      for (const Status& status : results) {
        TESSERA_REQUIRE(absl::IsUnavailable(status), status.ToString());
        TESSERA_REQUIRE(status != later, status.ToString());
      }
      // Only now may the other end connect: an offer of before its cut would be the former one.
      TESSERA_RETURN_IF_ERROR(barrier(m, "cut", {0, 1}));
      TESSERA_RETURN_IF_ERROR(m.engine.connect({peer}, soon()));
      TESSERA_RETURN_IF_ERROR(pass(m, peer, 5, 100 + round));
    }
    if (self(m) != 1) TESSERA_RETURN_IF_ERROR(pass(m, 2 - self(m), 1, round));
  }
  return barrier(m, "over");
}

// Operations that were submitted before a cut end with its reason, though the peer lives.
Status cut_ends_all_pending(EngineMember& m) {
  const Status reason = absl::UnavailableError("client 1 does not answer");
  if (self(m) == 0) {
    Outcomes ends;
    std::vector<std::byte> memory(kLarge);
    for (int i = 0; i < 100; ++i) {
      m.engine.receive(1, i, absl::MakeSpan(memory).first(i), nullptr, ends.next());
    }
    m.engine.receive(1, 200, absl::MakeSpan(memory), nullptr, ends.next());
    m.engine.cut(1, reason);
    int64_t value = 0;
    m.engine.receive(1, 0, bytes_of(value), nullptr, ends.next());
    m.engine.send(1, 0, bytes_of(value), nullptr, ends.next());
    TESSERA_RETURN_IF_ERROR(require_all(ends, 103, reason));
  }
  return barrier(m, "cut");
}

Status stop_with_pending(EngineMember& m) {
  Outcomes ends;
  int64_t memory[4];
  const int peer = 1 - self(m);
  for (int i = 0; i < 3; ++i) {
    m.engine.receive(peer, i, bytes_of(memory[i]), nullptr, ends.next());
  }
  TESSERA_RETURN_IF_ERROR(barrier(m, "posted"));
  // The other end stops as well, and is noticed where the engine finds that.
  m.engine.stop();
  TESSERA_REQUIRE(ends.num_ended() == 3, ends.num_ended());
  m.engine.send(peer, 1, bytes_of(memory[3]), nullptr, ends.next());
  m.engine.cut(peer, absl::UnavailableError("after the end"));
  const std::vector<Status> results = ends.all();
  for (const Status& status : results) {
    TESSERA_REQUIRE(absl::IsCancelled(status) || absl::IsUnavailable(status), status.ToString());
  }
  TESSERA_REQUIRE(absl::IsCancelled(results.back()), results.back().ToString());
  TESSERA_REQUIRE(absl::IsCancelled(m.engine.connect({peer}, soon())));
  m.engine.stop();
  return absl::OkStatus();
}

Status killed_peer(EngineMember& m) {
  if (self(m) == 1) {
    TESSERA_RETURN_IF_ERROR(barrier(m, "posted"));
    kill(getpid(), SIGKILL);
  }
  std::mutex mutex;
  std::optional<Status> told;
  Outcomes ends, heard;
  auto done = heard.next();
  m.engine.set_lost_listener([&](int client, const Status& reason) {
    std::lock_guard<std::mutex> lock(mutex);
    if (client != 1) return;
    told = reason;
    done(absl::OkStatus());
  });
  int64_t memory[2];
  for (int i = 0; i < 2; ++i) m.engine.receive(1, i, bytes_of(memory[i]), nullptr, ends.next());
  TESSERA_RETURN_IF_ERROR(barrier(m, "posted"));
  if (!m.traits.finds_death) m.engine.cut(1, absl::UnavailableError("client 1 (died)"));
  for (const Status& status : ends.all()) {
    TESSERA_REQUIRE(absl::IsUnavailable(status), status.ToString());
    TESSERA_REQUIRE(absl::StrContains(status.message(), "client 1 ("), status.ToString());
  }
  TESSERA_REQUIRE(ends.num_ended() == 2);
  if (m.traits.finds_death) {
    TESSERA_RETURN_IF_ERROR(heard.wait());
    std::lock_guard<std::mutex> lock(mutex);
    TESSERA_REQUIRE(told.has_value() && absl::IsUnavailable(*told));
  }
  m.engine.set_lost_listener(nullptr);
  return pass(m, 2 - self(m), 3, 42);
}

// Until it has stopped, a process that was sent SIGSTOP may go on.
void stop_process(int pid) {
  kill(pid, SIGSTOP);
  std::string line;
  do {
    std::ifstream stat(absl::StrCat("/proc/", pid, "/stat"));
    std::getline(stat, line);
    // "7 (name) T ...": a name may hold parentheses.
  } while (!line.empty() && line.compare(line.rfind(')') + 1, 2, " T") != 0);
}

// The bytes that the sockets of both ends of a connection may hold.
size_t most_in_sockets() {
  size_t total = 0;
  for (const char* name : {"/proc/sys/net/ipv4/tcp_rmem", "/proc/sys/net/ipv4/tcp_wmem"}) {
    std::ifstream sizes(name);
    size_t least = 0, first = 0, most = 0;
    sizes >> least >> first >> most;
    total += most;
  }
  return total;
}

// Stops client 1 while this client has a part of a message of client 1, and the rest is more than
// the sockets hold. False where the rest may already be in the sockets.
bool stop_in_the_middle(EngineMember& m, absl::Span<std::byte> memory) {
  const int pid = static_cast<int>(m.coordinator.members()[1].pid);
  std::atomic_ref<std::byte> first(memory.front());
  while (first.load() == std::byte{0}) std::this_thread::yield();
  stop_process(pid);
  std::atomic_ref<std::byte> late(memory[memory.size() - 1 - most_in_sockets()]);
  if (late.load() == std::byte{0}) return true;
  kill(pid, SIGCONT);
  return false;
}

Status peer_stopped_in_the_middle(EngineMember& m) {
  constexpr int kTries = 50;
  const Status reason = absl::UnavailableError("client 1 has missed its heartbeats");
  std::vector<int> pair = {0, 1};
  if (self(m) == 2) return pass(m, 0, 9, 7);
  for (int i = 0; i < kTries; ++i) {
    Outcomes ends;
    auto memory = std::make_shared<std::vector<std::byte>>(kLarge + most_in_sockets(),
                                                           static_cast<std::byte>(self(m)));
    std::weak_ptr<const void> held = memory;
    const absl::Span<std::byte> bytes = absl::MakeSpan(*memory);
    if (self(m) == 0) m.engine.receive(1, 4, bytes, memory, ends.next());
    TESSERA_RETURN_IF_ERROR(barrier(m, absl::StrCat("posted ", i), pair));
    if (self(m) == 1) {
      m.engine.send(0, 4, bytes, memory, ends.next());
      TESSERA_RETURN_IF_ERROR(ends.wait());
      continue;
    }
    if (!stop_in_the_middle(m, bytes)) {
      TESSERA_RETURN_IF_ERROR(ends.wait());
      continue;
    }
    memory.reset();
    // A send to the stopped client, of more than sockets hold.
    auto unsent = std::make_shared<std::vector<std::byte>>(bytes.size());
    std::weak_ptr<const void> unsent_held = unsent;
    m.engine.send(1, 5, absl::MakeSpan(*unsent), unsent, ends.next());
    unsent.reset();
    m.engine.cut(1, reason);
    TESSERA_RETURN_IF_ERROR(require_all(ends, 2, reason));
    TESSERA_RETURN_IF_ERROR(pass(m, 2, 9, 7));
    m.engine.stop();
    TESSERA_REQUIRE(held.expired() && unsent_held.expired());
    kill(static_cast<int>(m.coordinator.members()[1].pid), SIGKILL);
    return absl::OkStatus();
  }
  return absl::InternalError("the sockets held the rest of each message before its sender stopped");
}

// A child that exits, and a child that runs exec and destroys nothing, leave the connection as it
// is.
Status fork_beside_connection(EngineMember& m) {
  for (const bool executes : {false, true}) {
    const pid_t child = fork();
    if (child == 0) {
      if (executes) execl("/bin/true", "true", nullptr);
      _exit(0);
    }
    TESSERA_REQUIRE(child > 0);
    waitpid(child, nullptr, 0);
    TESSERA_RETURN_IF_ERROR(pass(m, 1 - self(m), 1, 5));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<EngineCase> loss_cases() {
  return {
      {"cut_and_connect_again", 3, connected<cut_and_connect_again>},
      {"cut_ends_all_pending", 2, connected<cut_ends_all_pending>},
      {"stop_with_pending", 2, connected<stop_with_pending>},
      {"fork_beside_connection", 2, connected<fork_beside_connection>},
      {"killed_peer", 3, connected<killed_peer>, true},
      {"peer_stopped_in_the_middle", 3, connected<peer_stopped_in_the_middle>, true},
  };
}

}  // namespace tessera::transport
