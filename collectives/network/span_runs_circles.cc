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
#include "collectives/host/conflicts.h"
#include "collectives/network/span_runs.h"

namespace tessera::network {
namespace {

using host::GroupMember;
using host::Rendezvous;

// How long a device is held for the end of the other runs of its circle.
constexpr absl::Duration kHoldLimit = absl::Seconds(5);

}  // namespace

void SpanRuns::look_for_circles(SpanRun& run) {
  if (is_for_messages_) return;
  const absl::Time now = steady_now();
  if (now < run.next_look) return;
  const bool is_first = !std::exchange(run.has_looked, true);
  run.next_look = is_first ? now + host::kLongWait - kFirstLook : now + host::kLongWait;
  if (is_first) {
    // One of this host is late: other hosts are told of those that are there.
    if (network_->links().are_up(others_)) send_arrivals(run);
    // As for a wait on one host: the last member of a circle sees what the others wait in.
    Rendezvous& rendezvous = meetings_.rendezvous();
    if (rendezvous.is_open(run.op.seq)) host::check_conflicts(rendezvous, run.op);
    std::string label = run.label();
    const bool differs_here = differ_here(run);
    std::lock_guard<std::mutex> lock(mutex_);
    run.differs_here = differs_here;
    waiting_.insert_or_assign(all_members()[run.position()].device_id,
                              Waiting{&run, std::move(label), now - kFirstLook});
  } else {
    network_->note_long_wait();
  }
  end_same_name(run);
}

// A barrier on this host that waits elsewhere. The coordinator finds one on another host.
void SpanRuns::end_same_name(SpanRun& run) {
  if (run.op.name_hash == 0) return;
  const std::optional<host::OperationWait> other =
      host::find_same_name(meetings_.rendezvous(), run.op);
  if (!other.has_value()) return;
  std::optional<LocalWait> own = wait_of(all_members()[run.position()].device_id);
  if (!own.has_value()) return;
  std::vector<int> ids;
  for (const GroupMember& member : other->group->members()) ids.push_back(member.device_id);
  DeviceWait theirs = {.device = other->device.device_id,
                       .run = {},
                       .spans_hosts = false,
                       .name_hash = other->name_hash,
                       .label = other->label,
                       .group = IdRanges::list_of(ids),
                       .missing = {}};
  const Status error = network_->describe_circle({std::move(own->wait), std::move(theirs)});
  propose(run, error).IgnoreError();
  other->end(error);
}

bool SpanRuns::has_come(int member, const std::vector<bool>& here, const Board& board) const {
  return places_.is_here(member) ? here[places_.local_index(member)]
                                 : board.entries.count(member) > 0;
}

std::optional<LocalWait> SpanRuns::wait_of(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto waiting = waiting_.find(device);
  if (waiting == waiting_.end()) return std::nullopt;
  const SpanRun& run = *waiting->second.run;
  const Board& board = boards_.at(run.op.seq);
  if (board.verdict.has_value()) return std::nullopt;
  const std::vector<bool> here = meetings_.rendezvous().arrivals(run.op.seq);
  std::vector<int> missing;
  for (int m = 0; m < num_members(); ++m) {
    if (!has_come(m, here, board)) missing.push_back(all_members()[m].device_id);
  }
  if (missing.empty()) return std::nullopt;
  return LocalWait{.wait = {.device = device,
                            .run = {name_, run.op.seq},
                            .spans_hosts = true,
                            .name_hash = run.op.name_hash,
                            .label = waiting->second.label,
                            .group = IdRanges::list_of(device_ids()),
                            .missing = IdRanges::of(missing)},
                   .since = waiting->second.since};
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

void SpanRuns::end(const DeviceWait& wait, const Status& error, bool is_held,
                   std::function<void()>& next) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto waiting = waiting_.find(wait.device);
  if (waiting == waiting_.end() || waiting->second.run->op.seq != wait.run.seq) return;
  SpanRun& run = *waiting->second.run;
  // Where a run is in two circles, one of them ends it.
  if (run.ending.has_value()) return;
  run.ending = SpanRun::Ending{error, is_held, std::exchange(next, nullptr)};
  tell(run);
  wake_waiters();
}

void SpanRuns::release(const DeviceWait& wait) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto waiting = waiting_.find(wait.device);
  if (waiting == waiting_.end() || waiting->second.run->op.seq != wait.run.seq) return;
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
