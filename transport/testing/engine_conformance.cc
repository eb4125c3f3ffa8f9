// SPDX-License-Identifier: Apache-2.0
#include "transport/testing/engine_conformance.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "tests/support/forked.h"
#include "tests/support/sanitizers.h"
#include "transport/testing/engine_losses.h"
#include "transport/testing/outcomes.h"

namespace tessera::transport {
namespace {

using Bytes = std::vector<std::byte>;

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kLargest = (testing::kSanitized ? 8 : 64) * kMiB;

// Bytes that depend on the seed and on their position.
Bytes pattern(size_t size, uint32_t seed) {
  Bytes bytes(size);
  uint32_t state = seed * 2654435761u + 1;
  for (std::byte& byte : bytes) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

Status order_per_tag(EngineMember& m) {
  constexpr int kCount = 1000;
  std::vector<int> values(kCount, -1);
  Outcomes ends;
  if (self(m) == 0) {
    for (int i = 0; i < kCount / 2; ++i) {
      m.engine.receive(1, 7, bytes_of(values[i]), nullptr, ends.next());
    }
    TESSERA_RETURN_IF_ERROR(barrier(m, "half are posted"));
    for (int i = kCount / 2; i < kCount; ++i) {
      m.engine.receive(1, 7, bytes_of(values[i]), nullptr, ends.next());
    }
    TESSERA_RETURN_IF_ERROR(ends.wait());
    for (int i = 0; i < kCount; ++i) TESSERA_REQUIRE(values[i] == i, i, ": ", values[i]);
    return absl::OkStatus();
  }
  std::iota(values.begin(), values.end(), 0);
  TESSERA_RETURN_IF_ERROR(barrier(m, "half are posted"));
  for (int& value : values) m.engine.send(0, 7, bytes_of(value), nullptr, ends.next());
  return ends.wait();
}

// Receives are posted after the sends, in the opposite order.
Status unannounced_with_many_tags(EngineMember& m) {
  constexpr int kCount = 300;
  std::vector<Bytes> messages;
  Outcomes ends;
  if (self(m) == 1) {
    for (int i = 0; i < kCount; ++i) messages.push_back(pattern(i % 5 == 0 ? 4096 : i, i));
    for (int i = 0; i < kCount; ++i) {
      m.engine.send(0, kNumTags - 1 - i, messages[i], nullptr, ends.next());
    }
    TESSERA_RETURN_IF_ERROR(ends.wait());
    return barrier(m, "sent");
  }
  TESSERA_RETURN_IF_ERROR(barrier(m, "sent"));
  messages.resize(kCount);
  for (int i = kCount - 1; i >= 0; --i) {
    messages[i].resize(i % 5 == 0 ? 4096 : i);
    m.engine.receive(1, kNumTags - 1 - i, absl::MakeSpan(messages[i]), nullptr, ends.next());
  }
  TESSERA_RETURN_IF_ERROR(ends.wait());
  for (int i = 0; i < kCount; ++i) {
    TESSERA_REQUIRE(messages[i] == pattern(messages[i].size(), i), i);
  }
  return absl::OkStatus();
}

// Sends one message to each other client and receives one from each, all at once.
Status swap_all(EngineMember& m, size_t size, Tag tag) {
  const int num_clients = m.coordinator.num_clients();
  const auto seed = [&](int from, int to) { return static_cast<uint32_t>(size + from * 16 + to); };
  std::vector<Bytes> in(num_clients), out(num_clients);
  Outcomes ends;
  for (int peer = 0; peer < num_clients; ++peer) {
    if (peer == self(m)) continue;
    out[peer] = pattern(size, seed(self(m), peer));
    in[peer].resize(size);
    m.engine.receive(peer, tag, absl::MakeSpan(in[peer]), nullptr, ends.next());
  }
  TESSERA_RETURN_IF_ERROR(barrier(m, "posted"));
  for (int peer = 0; peer < num_clients; ++peer) {
    if (peer != self(m)) m.engine.send(peer, tag, out[peer], nullptr, ends.next());
  }
  TESSERA_RETURN_IF_ERROR(ends.wait());
  for (int peer = 0; peer < num_clients; ++peer) {
    if (peer == self(m)) continue;
    TESSERA_REQUIRE(in[peer] == pattern(size, seed(peer, self(m))), size, " bytes from ", peer);
  }
  return absl::OkStatus();
}

Status sizes_crossing(EngineMember& m) {
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{7}, size_t{4095}, size_t{4096}, size_t{4097}, size_t{65535},
        size_t{65537}, kMiB - 1, 3 * kMiB + 5, kLargest}) {
    TESSERA_RETURN_IF_ERROR(swap_all(m, size, 3));
  }
  return absl::OkStatus();
}

Status several_peers(EngineMember& m) {
  for (const size_t size : {size_t{0}, size_t{8}, size_t{100000}, 2 * kMiB}) {
    TESSERA_RETURN_IF_ERROR(swap_all(m, size, 1));
  }
  return absl::OkStatus();
}

Status many_outstanding(EngineMember& m) {
  constexpr size_t kBlock = 256 * 1024;
  constexpr size_t kBlocks = testing::kSanitized ? 32 : 128;
  const Bytes out = pattern(kBlock * kBlocks, self(m));
  Bytes in(out.size());
  Outcomes ends;
  for (size_t i = 0; i < kBlocks; ++i) {
    m.engine.receive(1 - self(m), i % 2, absl::MakeSpan(in).subspan(i * kBlock, kBlock), nullptr,
                     ends.next());
  }
  TESSERA_RETURN_IF_ERROR(barrier(m, "posted"));
  for (size_t i = 0; i < kBlocks; ++i) {
    m.engine.send(1 - self(m), i % 2, absl::MakeSpan(out).subspan(i * kBlock, kBlock), nullptr,
                  ends.next());
  }
  TESSERA_RETURN_IF_ERROR(ends.wait());
  TESSERA_REQUIRE(in == pattern(out.size(), 1 - self(m)));
  return absl::OkStatus();
}

Status sizes_that_differ(EngineMember& m) {
  struct Row {
    size_t sent, expected;
  };
  for (const Row row : {Row{8, 4}, Row{4, 8}, Row{0, 1}, Row{1, 0}, Row{kMiB, 4096},
                        Row{4096, kMiB}, Row{kMiB, 0}}) {
    Outcomes wrong, right;
    Bytes bytes(std::max(row.sent, row.expected)), second = pattern(kMiB, 5);
    if (self(m) == 0) {
      second.assign(kMiB, std::byte{0});
      m.engine.receive(1, 2, absl::MakeSpan(bytes).first(row.expected), nullptr, wrong.next());
      m.engine.receive(1, 2, absl::MakeSpan(second), nullptr, right.next());
    }
    TESSERA_RETURN_IF_ERROR(barrier(m, "posted"));
    if (self(m) == 1) {
      m.engine.send(0, 2, absl::MakeSpan(bytes).first(row.sent), nullptr, right.next());
      m.engine.send(0, 2, second, nullptr, right.next());
    }
    const std::vector<Status> errors = wrong.all();
    TESSERA_RETURN_IF_ERROR(right.wait());
    TESSERA_REQUIRE(second == pattern(kMiB, 5), row.sent, " for ", row.expected);
    if (self(m) != 0) continue;
    TESSERA_REQUIRE(absl::IsInternal(errors.at(0)), errors[0].ToString());
    TESSERA_REQUIRE(errors[0].message().find("client 1 (") != absl::string_view::npos);
  }
  return absl::OkStatus();
}

// Passes a number to and fro, each step submitted by the callback of the one before.
struct PingPong {
  EngineMember& m;
  int left;
  int64_t value = 0;
  Engine::Done end;

  void step() {
    const int peer = 1 - self(m);
    m.engine.receive(peer, 4, bytes_of(value), nullptr, [this, peer](const Status& status) {
      if (!status.ok()) return end(status);
      ++value;
      m.engine.send(peer, 4, bytes_of(value), nullptr, [this](const Status& sent) {
        if (--left == 0 || !sent.ok()) return end(sent);
        step();
      });
    });
  }
};

Status callbacks_that_submit(EngineMember& m) {
  constexpr int kSteps = 500;
  Outcomes ends;
  PingPong game{.m = m, .left = kSteps, .value = 0, .end = ends.next()};
  game.step();
  int64_t first = 0;
  if (self(m) == 0) {
    m.engine.send(1, 4, bytes_of(first), nullptr, ends.next());
    TESSERA_RETURN_IF_ERROR(ends.wait());
    TESSERA_REQUIRE(game.value == 2 * kSteps, game.value);
    return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(ends.wait());
  TESSERA_REQUIRE(game.value == 2 * kSteps - 1, game.value);
  return absl::OkStatus();
}

// Each thread exchanges words with a thread of the peer and waits in the engine; the `done` of any
// thread may run on any. Then the engine's own thread has to go on.
Status threads_that_wait(EngineMember& m) {
  constexpr int kThreads = 3;
  constexpr int kRounds = 300;
  const int peer = 1 - self(m);
  const auto swap_words = [&](int tag) -> Status {
    for (int round = 0; round < kRounds; ++round) {
      int in = -1;
      int out = round;
      Engine::Wait wait;
      std::atomic<int> num_left{2};
      const auto end = [&](const Status& status) {
        if (status.ok() && --num_left == 0) m.engine.wake(wait);
      };
      m.engine.receive(peer, tag, bytes_of(in), nullptr, end);
      m.engine.send(peer, tag, bytes_of(out), nullptr, end);
      m.engine.wait(wait, absl::Minutes(1));
      TESSERA_REQUIRE(num_left == 0 && in == round, "round ", round, " of tag ", tag, ": ", in);
    }
    return absl::OkStatus();
  };
  Status results[kThreads];
  {
    std::vector<std::jthread> threads;
    for (int tag = 0; tag < kThreads; ++tag) {
      threads.emplace_back([&, tag] { results[tag] = swap_words(tag); });
    }
  }
  for (const Status& result : results) TESSERA_RETURN_IF_ERROR(result);
  return swap_all(m, 100000, kThreads);
}

// Without connections.
Status before_connect(EngineMember& m) {
  TESSERA_REQUIRE(absl::IsInvalidArgument(m.engine.connect({self(m)}, soon())));
  TESSERA_REQUIRE(absl::IsInvalidArgument(m.engine.connect({2}, soon())));
  TESSERA_REQUIRE(absl::IsInvalidArgument(m.engine.connect({-1}, soon())));
  int64_t value = 0;
  Outcomes ends;
  m.engine.send(1 - self(m), 0, bytes_of(value), nullptr, ends.next());
  m.engine.receive(1 - self(m), 0, bytes_of(value), nullptr, ends.next());
  for (const Status& status : ends.all()) {
    TESSERA_REQUIRE(absl::IsFailedPrecondition(status), status.ToString());
  }
  TESSERA_REQUIRE(ends.num_ended() == 2);
  // Client 1 does not connect yet.
  if (self(m) == 0) {
    const Status status = m.engine.connect({1}, steady_now() + absl::Milliseconds(50));
    TESSERA_REQUIRE(absl::IsDeadlineExceeded(status), status.ToString());
    TESSERA_REQUIRE(status.message().find("client 1 (") != absl::string_view::npos,
                    status.ToString());
  }
  TESSERA_RETURN_IF_ERROR(barrier(m, "not connected"));
  TESSERA_RETURN_IF_ERROR(m.engine.connect({1 - self(m)}, soon()));
  TESSERA_RETURN_IF_ERROR(m.engine.connect({1 - self(m)}, steady_now()));  // nothing to do
  return swap_all(m, 100, 1);
}

}  // namespace

const std::vector<EngineCase>& engine_cases() {
  static const std::vector<EngineCase>* const cases = [] {
    auto* const all = new std::vector<EngineCase>{
        {"before_connect", 2, before_connect},
        {"order_per_tag", 2, connected<order_per_tag>},
        {"unannounced_with_many_tags", 2, connected<unannounced_with_many_tags>},
        {"sizes_crossing", 2, connected<sizes_crossing>},
        {"several_peers", 4, connected<several_peers>},
        {"many_outstanding", 2, connected<many_outstanding>},
        {"sizes_that_differ", 2, connected<sizes_that_differ>},
        {"threads_that_wait", 2, connected<threads_that_wait>},
        {"callbacks_that_submit", 2, connected<callbacks_that_submit>},
    };
    for (const EngineCase& c : loss_cases()) all->push_back(c);
    return all;
  }();
  return *cases;
}

std::ostream& operator<<(std::ostream& out, const EngineCase& c) { return out << c.name; }

}  // namespace tessera::transport
