// SPDX-License-Identifier: Apache-2.0
//
// How a run of a group that spans hosts is found in a circle of waits, and ended.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/network/span_runs.h"

namespace tessera::network {
namespace {

using host::GroupMember;
using host::Rendezvous;

// At most between two looks.
constexpr absl::Duration kLastLookInterval = absl::Seconds(2);
// How long a device is held for the letter that ends the other runs of its circle.
constexpr absl::Duration kHoldLimit = absl::Seconds(1);

}  // namespace

void SpanRuns::look_for_circles(SpanRun& run) {
  if (is_for_messages_) return;
  const absl::Time now = steady_now();
  if (now < run.next_look) return;
  const bool is_first = run.look_interval == absl::ZeroDuration();
  run.look_interval =
      is_first ? kFirstLookInterval : std::min(2 * run.look_interval, kLastLookInterval);
  run.next_look = now + run.look_interval;
  const int device = all_members()[run.position()].device_id;
  Rendezvous& rendezvous = meetings_.rendezvous();
  if (is_first) {
    // As for a wait on one host: the last member of a circle sees what the others wait in.
    if (rendezvous.is_open(run.op.seq)) rendezvous.check_conflicts(run.op);
    std::string label = run.label();
    const bool differs_here = differ_here(run);
    std::lock_guard<std::mutex> lock(mutex_);
    run.differs_here = differs_here;
    waiting_.insert_or_assign(device, Waiting{&run, std::move(label)});
  }
  end_same_name(run);
  if (is_first_arrived(run)) network_->search_circle(device);
}

// A barrier on this host that waits elsewhere. A search finds one on another host.
void SpanRuns::end_same_name(SpanRun& run) {
  if (run.op.name_hash == 0) return;
  const std::optional<Rendezvous::Wait> other = meetings_.rendezvous().find_same_name(run.op);
  if (!other.has_value()) return;
  std::optional<CircleWait> own = wait_of(all_members()[run.position()].device_id);
  if (!own.has_value()) return;
  CircleHop theirs = {.device = other->device.device_id,
                      .run = {},
                      .name_hash = other->name_hash,
                      .label = other->label,
                      .group = {}};
  for (const GroupMember& member : other->group->members()) {
    theirs.group.push_back(member.device_id);
  }
  const Status error = network_->describe_circle({std::move(own->hop), std::move(theirs)});
  propose(run, error).IgnoreError();
  other->end(error);
}

bool SpanRuns::is_first_arrived(const SpanRun& run) {
  const std::vector<bool> here = meetings_.rendezvous().arrivals(run.op.seq);
  std::lock_guard<std::mutex> lock(mutex_);
  const Board& board = boards_.at(run.op.seq);
  for (int m = 0; m < run.position(); ++m) {
    if (has_come(m, here, board)) return false;
  }
  return true;
}

bool SpanRuns::has_come(int member, const std::vector<bool>& here, const Board& board) const {
  return places_.is_here(member) ? here[places_.local_index(member)]
                                 : board.entries.count(member) > 0;
}

std::optional<CircleWait> SpanRuns::wait_of(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto waiting = waiting_.find(device);
  if (waiting == waiting_.end()) return std::nullopt;
  const SpanRun& run = *waiting->second.run;
  const Board& board = boards_.at(run.op.seq);
  if (board.verdict.has_value()) return std::nullopt;
  CircleWait wait = {.hop = {.device = device,
                             .run = {name_, run.op.seq},
                             .name_hash = run.op.name_hash,
                             .label = waiting->second.label,
                             .group = {}},
                     .spans_hosts = true,
                     .missing = {}};
  const std::vector<bool> here = meetings_.rendezvous().arrivals(run.op.seq);
  for (int m = 0; m < num_members(); ++m) {
    wait.hop.group.push_back(all_members()[m].device_id);
    if (!has_come(m, here, board)) wait.missing.push_back(wait.hop.group.back());
  }
  if (wait.missing.empty()) return std::nullopt;
  return wait;
}

bool SpanRuns::has_arrived(int device, uint32_t seq) {
  const auto member = std::find_if(all_members().begin(), all_members().end(),
                                   [&](const GroupMember& m) { return m.device_id == device; });
  if (member == all_members().end()) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  const Board* const board = boards_.find(seq);
  const int position = static_cast<int>(member - all_members().begin());
  return boards_.is_over(seq) || (board != nullptr && board->arrived.count(position) > 0);
}

void SpanRuns::end(const CircleHop& hop, const Status& error, bool is_held,
                   std::function<void()>& next) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto waiting = waiting_.find(hop.device);
  if (waiting == waiting_.end() || waiting->second.run->op.seq != hop.run.seq) return;
  SpanRun& run = *waiting->second.run;
  // Where a run is in two circles, one of them ends it.
  if (run.ending.has_value()) return;
  run.ending = SpanRun::Ending{error, is_held, std::exchange(next, nullptr)};
  tell(run);
  wake_waiters();
}

void SpanRuns::release(const CircleHop& hop) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto waiting = waiting_.find(hop.device);
  if (waiting == waiting_.end() || waiting->second.run->op.seq != hop.run.seq) return;
  waiting->second.run->is_released = true;
  wake_waiters();
}

Status SpanRuns::end_in_circle(SpanRun& run, const SpanRun::Ending& ending) {
  // A deadline has ended the circle, and the others came.
  const bool is_over = all_came(run);
  const Status verdict = is_over ? Status() : fail(run, ending.error);
  ending.next();
  if (is_over) return verdict;
  std::unique_lock<std::mutex> lock(mutex_);
  if (ending.is_held) wait_for(lock, kHoldLimit, [&] { return run.is_released; });
  return verdict;
}

}  // namespace tessera::network
