// SPDX-License-Identifier: Apache-2.0
#include "transport/link_measurement.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/text.h"
#include "job/environment/host.h"

namespace tessera::transport {
namespace {

constexpr Tag kWords = kFirstMeasurementTag;  // small messages to the host that is measured
constexpr Tag kAnswers = kFirstMeasurementTag + 1;
constexpr Tag kBlocks = kFirstMeasurementTag + 2;
static_assert(kBlocks < kFirstTagOfRuns);

constexpr int kNumWords = 16;
constexpr int kNumLarge = 4;
constexpr int64_t kBlockBytes = 256 << 10;
constexpr int kNumBlocks = 2;
constexpr int64_t kLargeBytes = kNumBlocks * kBlockBytes;

constexpr absl::string_view kResult = "tessera/network";

std::string key_of(int client) { return absl::StrCat(kResult, "/", client); }

// The first client of each host, by host.
std::vector<int> first_clients(absl::Span<const MemberInfo> members) {
  std::vector<int> result;
  const std::vector<int> host_of = number_hosts(members);
  for (size_t client = 0; client < host_of.size(); ++client) {
    if (host_of[client] == static_cast<int>(result.size())) {
      result.push_back(static_cast<int>(client));
    }
  }
  return result;
}

// Measures the way to one client, and serves the measurement of another one. Its calls to the
// engine own it, so it answers late peers until the engine stops.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(Engine& engine, int to, int from) : engine_(engine), to_(to), from_(from) {}

  // Once. Blocks for kLongestMeasurement at most. The error of the engine.
  StatusOr<NetworkCost> run(absl::Time deadline) {
    const absl::Time begin = steady_now();
    // The blocks first: the answer to the first word says that they may be sent.
    receive_blocks();
    receive_word();
    send_word();
    engine_.wait(wait_, std::min(kLongestMeasurement, deadline - begin));
    std::lock_guard<std::mutex> lock(mutex_);
    TESSERA_RETURN_IF_ERROR(error_);
    const absl::Duration lasted = steady_now() - begin;
    return NetworkCost{
        absl::ToDoubleSeconds(std::min(latency_, lasted)),
        kLargeBytes / std::max(absl::ToDoubleSeconds(std::min(large_, lasted)), 1e-6)};
  }

 private:
  // `next` runs where the engine calls, one at a time, unless there was an error.
  Engine::Done then(void (Exchange::*next)()) {
    return [self = shared_from_this(), next](const Status& status) {
      if (status.ok()) return (self.get()->*next)();
      std::lock_guard<std::mutex> lock(self->mutex_);
      self->error_.Update(status);
      self->engine_.wake(self->wait_);
    };
  }
  void nothing() {}
  void send(int client, Tag tag, absl::Span<const std::byte> bytes) {
    engine_.send(client, tag, bytes, shared_from_this(), then(&Exchange::nothing));
  }
  void receive(int client, Tag tag, absl::Span<std::byte> bytes, void (Exchange::*next)()) {
    engine_.receive(client, tag, bytes, shared_from_this(), then(next));
  }

  // --- The way to `to_`.

  void send_word() {
    sent_ = steady_now();
    receive(to_, kAnswers, absl::MakeSpan(answer_), &Exchange::word_answered);
    send(to_, kWords, word_);
  }
  void word_answered() {
    const absl::Duration latency = (steady_now() - sent_) / 2;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      latency_ = std::min(latency_, latency);
    }
    if (++num_answered_ < kNumWords) return send_word();
    if (num_served_ == kNumWords) send_large();
  }
  void send_large() {
    sent_ = steady_now();
    receive(to_, kAnswers, absl::MakeSpan(answer_), &Exchange::large_answered);
    for (int i = 0; i < kNumBlocks; ++i) send(to_, kBlocks, out_);
  }
  void large_answered() {
    const absl::Duration took = steady_now() - sent_;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      // A round trip takes twice the latency; at least a part of the rest is the time of the bytes.
      large_ = std::min(large_, std::max(took - 2 * latency_, took / 8));
    }
    if (++num_large_ < kNumLarge) return send_large();
    end_one();
  }

  // --- The way from `from_`.

  void receive_word() { receive(from_, kWords, absl::MakeSpan(word_in_), &Exchange::word_arrived); }
  void word_arrived() {
    if (++num_served_ < kNumWords) receive_word();
    send(from_, kAnswers, word_);
    // Words and large messages of two hosts that measure each other do not meet.
    if (num_served_ == kNumWords && num_answered_ == kNumWords) send_large();
  }
  void receive_blocks() {
    for (absl::Span<std::byte> block :
         {absl::MakeSpan(in_).first(kBlockBytes), absl::MakeSpan(in_).subspan(kBlockBytes)}) {
      receive(from_, kBlocks, block, &Exchange::block_arrived);
    }
  }
  void block_arrived() {
    if (++num_blocks_ % kNumBlocks != 0) return;
    const bool is_last = num_blocks_ == kNumLarge * kNumBlocks;
    if (!is_last) receive_blocks();
    send(from_, kAnswers, word_);
    if (is_last) end_one();
  }

  void end_one() {
    if (++num_ended_ == 2) engine_.wake(wait_);
  }

  using Word = std::array<std::byte, 8>;

  Engine& engine_;
  const int to_;
  const int from_;
  const Word word_ = {};
  Word word_in_;
  Word answer_;
  const std::vector<std::byte> out_ = std::vector<std::byte>(kBlockBytes);
  std::vector<std::byte> in_ = std::vector<std::byte>(kLargeBytes);
  // After the start accessed only where the engine calls.
  absl::Time sent_;
  int num_answered_ = 0;
  int num_large_ = 0;
  int num_served_ = 0;
  int num_blocks_ = 0;
  int num_ended_ = 0;
  Engine::Wait wait_;

  std::mutex mutex_;  // guards the members below
  absl::Duration latency_ = absl::InfiniteDuration();
  absl::Duration large_ = absl::InfiniteDuration();
  Status error_;
};

}  // namespace

NetworkCost network_class(const NetworkCost& measured) {
  return {measured.latency_s < 200e-6 ? 50e-6 : 1e-3, measured.bytes_per_s < 0.4e9 ? 0.125e9
                                                      : measured.bytes_per_s < 8e9 ? 1.25e9
                                                                                   : 12.5e9};
}

NetworkCost median(absl::Span<const NetworkCost> costs) {
  std::vector<double> latencies;
  std::vector<double> rates;
  for (const NetworkCost& cost : costs) {
    latencies.push_back(cost.latency_s);
    rates.push_back(cost.bytes_per_s);
  }
  std::sort(latencies.begin(), latencies.end());
  std::sort(rates.begin(), rates.end(), std::greater<>());
  const size_t middle = (costs.size() - 1) / 2;
  return {latencies[middle], rates[middle]};
}

std::string to_text(absl::Span<const NetworkCost> costs) {
  return absl::StrJoin(costs, ",", [](std::string* out, const NetworkCost& cost) {
    absl::StrAppend(out, static_cast<int64_t>(cost.latency_s * 1e9), ":",
                    static_cast<int64_t>(cost.bytes_per_s));
  });
}

StatusOr<std::vector<NetworkCost>> parse_costs(absl::string_view text) {
  std::vector<NetworkCost> result;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> numbers = absl::StrSplit(part, ':');
    int64_t nanoseconds = 0;
    int64_t rate = 0;
    if (numbers.size() != 2 || !absl::SimpleAtoi(numbers[0], &nanoseconds) ||
        !absl::SimpleAtoi(numbers[1], &rate)) {
      return absl::InternalError(absl::StrCat(
          in_quotes(text), " is not a measurement of a network, such as 31000:117000000"));
    }
    result.push_back({static_cast<double>(nanoseconds) * 1e-9, static_cast<double>(rate)});
  }
  return result;
}

std::vector<int> measured_distances(int num_hosts) {
  if (num_hosts < 4) return {1};
  return {1, num_hosts / 2};
}

StatusOr<NetworkCost> measure_network(Engine& engine, Coordinator& coordinator,
                                      absl::Time deadline) {
  const absl::Span<const MemberInfo> members = coordinator.members();
  const std::vector<int> firsts = first_clients(members);
  const int own = coordinator.client_id();
  const auto num_hosts = static_cast<int>(firsts.size());
  const auto host = static_cast<int>(std::find(firsts.begin(), firsts.end(), own) - firsts.begin());
  if (host < num_hosts) {
    // Else a client that connects late would seem to be a slow link.
    TESSERA_RETURN_IF_ERROR(
        coordinator.check_in("the measurement of the network between hosts", "", firsts, deadline));
    std::vector<NetworkCost> costs;
    for (const int distance : measured_distances(num_hosts)) {
      const int to = firsts[(host + distance) % num_hosts];
      const int from = firsts[(host - distance + num_hosts) % num_hosts];
      const auto exchange = std::make_shared<Exchange>(engine, to, from);
      TESSERA_ASSIGN_OR_RETURN(costs.emplace_back(), exchange->run(deadline));
    }
    TESSERA_RETURN_IF_ERROR(coordinator.put(key_of(own), to_text(costs)));
  }
  if (own == 0) {
    std::vector<NetworkCost> all;
    for (const int client : firsts) {
      TESSERA_ASSIGN_OR_RETURN(const std::string text,
                               coordinator.get(key_of(client), client, deadline));
      TESSERA_ASSIGN_OR_RETURN(const std::vector<NetworkCost> costs, parse_costs(text));
      all.insert(all.end(), costs.begin(), costs.end());
    }
    TESSERA_RETURN_IF_ERROR(coordinator.put(kResult, to_text({median(all)})));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string text, coordinator.get(kResult, 0, deadline));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<NetworkCost> costs, parse_costs(text));
  return costs[0];
}

}  // namespace tessera::transport
