// SPDX-License-Identifier: Apache-2.0
#include "transport/links.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace tessera::transport {
namespace {

// A process that ends breaks its connections just before the coordinator says so.
constexpr absl::Duration kFirstPause = absl::Milliseconds(20);
// How long an attempt waits for the other end, and the pause after a failed attempt.
constexpr absl::Duration kAttemptLimit = absl::Seconds(2);
constexpr absl::Duration kAttemptInterval = absl::Milliseconds(250);

}  // namespace

Links::Links(Engine& engine, Site& site) : engine_(engine), site_(site) {
  engine_.set_lost_listener(
      [this](int client, const Status& reason) { note_broken(client, reason); });
}

Links::~Links() {
  engine_.set_lost_listener(nullptr);
  stop();
}

void Links::note_broken(int client, const Status& reason) {
  uint64_t number = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Break& last = breaks_[client];
    const bool was_up = last.number == 0 || !last.is_down;
    if (was_up) ++num_down_;
    // An attempt that breaks does not make the wait of runs longer, nor does a connection that
    // breaks as soon as it is made: engines on MPI find only then that MPI has ended.
    const absl::Time now = steady_now();
    if (was_up && now - last.up_since > kAttemptInterval) last.since = now;
    last.number = number = num_breaks_.load() + 1;
    last.reason = reason;
    last.is_down = true;
    num_breaks_.store(last.number, std::memory_order_release);
  }
  site_.connection_broke(client, number);
  std::lock_guard<std::mutex> lock(mutex_);
  if (is_connecting_) return;
  // Where no thread can be started the connection stays down.
  is_connecting_ = connecting_.post([this] { connect_again(); }).ok();
}

bool Links::are_up(absl::Span<const int> clients) const {
  if (num_down_.load(std::memory_order_acquire) == 0) return true;
  std::lock_guard<std::mutex> lock(mutex_);
  return std::none_of(clients.begin(), clients.end(), [this](int client) {
    const auto it = breaks_.find(client);
    return it != breaks_.end() && it->second.is_down;
  });
}

bool Links::have_broken(absl::Span<const int> clients, uint64_t num_breaks) const {
  if (this->num_breaks() == 0) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(clients.begin(), clients.end(), [&](int client) {
    const auto it = breaks_.find(client);
    return it != breaks_.end() && (it->second.is_down || it->second.number > num_breaks);
  });
}

Status Links::find_broken(absl::Span<const int> clients, uint64_t num_breaks) const {
  if (this->num_breaks() == 0) return absl::OkStatus();
  const absl::Time now = steady_now();
  std::lock_guard<std::mutex> lock(mutex_);
  for (const int client : clients) {
    const auto it = breaks_.find(client);
    if (it == breaks_.end()) continue;
    const Break& last = it->second;
    const bool concerns_run = last.is_down || last.number > num_breaks;
    const bool is_decided = !last.is_down || now - last.since > kLossLimit;
    if (!concerns_run || !is_decided) continue;
    return absl::UnavailableError(
        absl::StrCat(last.reason.message(),
                     "; it is made again for later calls: repeat this call on every client"));
  }
  return absl::OkStatus();
}

Links::Down Links::find_down() {
  Down down;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    down.num_breaks = num_breaks();
    for (const auto& [client, last] : breaks_) {
      if (last.is_down) down.clients.push_back(client);
    }
  }
  std::erase_if(down.clients, [this](int client) { return site_.is_lost(client); });
  return down;
}

void Links::connect_again() {
  bool goes_on = connecting_.pause(kFirstPause);
  while (goes_on) {
    const Down down = find_down();
    bool are_all_up = true;
    for (const int client : down.clients) are_all_up &= try_to_connect(client);
    if (!are_all_up) {
      goes_on = connecting_.pause(kAttemptInterval);
      continue;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    if (down.num_breaks != num_breaks()) continue;
    is_connecting_ = false;
    return;
  }
}

bool Links::try_to_connect(int client) {
  uint64_t number = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    number = breaks_[client].number;
  }
  const Status connected = engine_.connect({client}, steady_now() + kAttemptLimit);
  if (!connected.ok()) {
    // Ends the attempt: the next attempt of each end is for another connection.
    engine_.cut(client, connected);
    return false;
  }
  site_.reopen_letters(client);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Break& last = breaks_[client];
    if (last.number != number) return false;
    last.is_down = false;
    last.up_since = steady_now();
    --num_down_;
  }
  site_.connection_is_up(client);
  return true;
}

}  // namespace tessera::transport
