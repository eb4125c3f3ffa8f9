// SPDX-License-Identifier: Apache-2.0
//
// How a run of a group that spans hosts fails: what a wait looks at, deadlines, and the verdict.
#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "collectives/host/last_seen.h"
#include "collectives/network/letter_body.h"
#include "collectives/network/span_runs.h"

namespace tessera::network {
namespace {

using host::GroupMember;
using host::Rendezvous;
using host::VerdictKind;

// How often a wait sees whether the others answer, which Network asks less often.
constexpr absl::Duration kPingInterval = absl::Milliseconds(100);
// How long a client has to say what it is doing.
constexpr absl::Duration kAnswerLimit = absl::Milliseconds(250);
// How long after the deadline of a run, which has already waited for answers, the coordinator may
// take to say which verdict was first; and how long from the question, at least and at most.
constexpr absl::Duration kDecisionLimit = absl::Milliseconds(750);
constexpr absl::Duration kLeastDecisionTime = absl::Milliseconds(200);
constexpr absl::Duration kMostDecisionTime = absl::Seconds(10);

}  // namespace

std::optional<Status> SpanRuns::failure(SpanRun& run) {
  std::optional<Status> verdict;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    verdict = boards_.at(run.op.seq).verdict;
  }
  if (verdict.has_value()) return settle_here(run, *verdict);
  // A member on this host has failed, or was found to wait in a circle.
  if (!meetings_.rendezvous().has_result(run.op.seq)) return std::nullopt;
  const Status settled = meetings_.settle_running(run, VerdictKind::kError, Status());
  return settled.ok() ? settled : propose(run, settled);
}

Status SpanRuns::check(SpanRun& run) {
  Status transfer_error;
  std::optional<SpanRun::Waited> waited;
  std::optional<SpanRun::Ending> ending;
  absl::Span<const int> needed;
  bool awaits_others = true;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    read_posted(run.op.seq);
    needed = needed_clients(run);
    awaits_others = !needed.empty() || !have_all_come(boards_.at(run.op.seq));
    waited = run.waited;
    run.is_waited_new = false;
    ending = std::exchange(run.ending, std::nullopt);
    transfer_error = run.transfers.error();
  }
  if (ending.has_value()) return end_in_circle(run, *ending);
  if (const std::optional<Status> failed = failure(run)) return *failed;
  if (may_be_interrupted()) {
    const Status why = meetings_.interruption(run);
    if (!why.ok()) return fail(run, why);
  }
  if (transfer_error.ok()) transfer_error = network_->links().find_broken(needed, run.num_breaks);
  if (awaits_others && transfer_error.ok() && steady_now() >= run.next_ping) {
    run.next_ping = steady_now() + kPingInterval;
    transfer_error = network_->find_unreachable(awaited_clients(run));
  }
  if (!transfer_error.ok()) return fail(run, run.labelled(transfer_error));
  if (waited.has_value()) return end_at_deadline(run, waited->called, waited->deadline);
  if (steady_now() < run.op.deadline) return absl::OkStatus();
  return end_at_deadline(run, run.op.start, run.op.deadline);
}

// A run whose inputs are in the entries needs no other host once it has them and has told its own.
// A client that reads what another one posts gets no entries by connections of its own.
absl::Span<const int> SpanRuns::needed_clients(const SpanRun& run) {
  const bool needs_all = !run.is_told || !run.is_inlined() || run.is_sent_apart;
  if (needs_all || (!postings_.reads() && !have_all_come(boards_.at(run.op.seq)))) return others_;
  return run.sent.empty() ? absl::Span<const int>() : postings_.receivers();
}

std::vector<int> SpanRuns::awaited_clients(const SpanRun& run) {
  std::set<int> clients;
  std::lock_guard<std::mutex> lock(mutex_);
  const Board& board = boards_.at(run.op.seq);
  for (int m = 0; m < num_members(); ++m) {
    if (places_.is_here(m) || board.entries.count(m) > 0) continue;
    clients.insert(all_members()[m].client_id);
  }
  for (const auto& [client, _] : run.transfers.awaited()) clients.insert(client);
  return clients.empty() ? others_ : std::vector<int>(clients.begin(), clients.end());
}

Status SpanRuns::missing(const SpanRun& run, absl::Time start, absl::Time deadline) {
  const host::HostLink& link = resources().link();
  const Rendezvous& rendezvous = meetings_.rendezvous();
  const std::vector<bool> here = rendezvous.arrivals(run.op.seq);
  std::vector<bool> arrived(num_members());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const Board& board = boards_.at(run.op.seq);
    for (int m = 0; m < num_members(); ++m) {
      arrived[m] = has_come(m, here, board);
    }
  }
  const std::map<int, std::string> doing = ask_missing(run, arrived);
  {
    // A member that has said that it has arrived is not missing, wherever its entry is.
    std::lock_guard<std::mutex> lock(mutex_);
    for (const int member : boards_.at(run.op.seq).have_arrived) arrived[member] = true;
  }
  const bool is_open = std::find(arrived.begin(), arrived.end(), false) != arrived.end();
  const Status error = host::describe_missing(
      {run.label(), all_members(), arrived, is_open, deadline - start},
      [&](int client) { return link.member(client).to_string(); },
      [&](const GroupMember& member) {
        if (link.is_on_host(member.client_id)) {
          return host::last_seen(link, member.client_id, member.ordinal).to_string();
        }
        const auto known = doing.find(member.device_id);
        return known == doing.end() ? std::string() : known->second;
      });
  std::string awaited;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [client, _] : run.transfers.awaited()) {
      absl::StrAppend(&awaited, awaited.empty() ? "" : ", ", link.member(client).to_string());
    }
  }
  if (is_open || awaited.empty()) return error;
  return Status(error.code(), absl::StrCat(error.message(), "; ", name_of(run.position()),
                                           " waits for bytes of ", awaited));
}

std::map<int, std::string> SpanRuns::ask_missing(const SpanRun& run,
                                                 const std::vector<bool>& arrived) {
  size_t num_asked = 0;
  std::vector<std::byte> call;
  append(&run.op.signature, 1, call);
  for (int m = 0; m < num_members(); ++m) {
    if (arrived[m] || places_.is_here(m)) continue;
    ++num_asked;
    network_->letters.send(all_members()[m].client_id, {.kind = Letter::Kind::kAsk,
                                                        .seq = run.op.seq,
                                                        .group = name_,
                                                        .from = run.position(),
                                                        .to = m,
                                                        .body = call});
  }
  std::unique_lock<std::mutex> lock(mutex_);
  Board& board = boards_.at(run.op.seq);
  const auto has_all = [&] {
    for (const int member : board.coming) {
      if (board.entries.count(member) == 0) return false;
    }
    return board.doing.size() >= num_asked;
  };
  const absl::Time limit = steady_now() + kAnswerLimit;
  while (!has_all() && steady_now() < limit) {
    // What is posted wakes no wait for letters.
    wait_for(lock, postings_.reads() ? kLateCheckInterval : kAnswerLimit, has_all);
    read_posted(run.op.seq);
  }
  std::map<int, std::string> doing;
  for (const auto& [member, text] : board.doing) doing[all_members()[member].device_id] = text;
  return doing;
}

Status SpanRuns::propose(const SpanRun& run, const Status& error, absl::Time deadline) {
  const Verdict verdict = decide(run, error, deadline);
  if (verdict.is_new) tell(run, verdict.status);
  return verdict.status;
}

Status SpanRuns::fail(const SpanRun& run, const Status& error) {
  const Verdict verdict = decide(run, error, absl::InfiniteFuture());
  const Status settled = settle_here(run, verdict.status);
  if (verdict.is_new) tell(run, verdict.status);
  return settled;
}

SpanRuns::Verdict SpanRuns::decide(const SpanRun& run, const Status& error, absl::Time deadline) {
  const uint32_t seq = run.op.seq;
  deadline = std::min(deadline, run.op.deadline);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (run.waited.has_value()) deadline = std::min(deadline, run.waited->deadline);
    if (const Boards::Failed* const known = boards_.find_failure(seq)) {
      return {known->verdict, /*is_new=*/false};
    }
  }
  const absl::Time now = steady_now();
  const absl::Time limit =
      std::clamp(deadline + kDecisionLimit, now + kLeastDecisionTime, now + kMostDecisionTime);
  const Status verdict = verdicts_.decide(seq, error, limit);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    keep_failure(seq, run.op.signature, verdict);
    wake_waiters();
  }
  return {verdict, /*is_new=*/true};
}

void SpanRuns::tell(const SpanRun& run, const Status& verdict) {
  send_to_others(letter_of(run.op.seq, run.op.signature, verdict));
}

Letter SpanRuns::letter_of(uint32_t seq, const Signature& call, const Status& verdict) const {
  int own = 0;
  while (all_members()[own].client_id != resources().link().client_id()) ++own;
  Letter letter = {
      .kind = Letter::Kind::kVerdict, .seq = seq, .group = name_, .from = own, .to = 0, .body = {}};
  const VerdictHead head = {call, static_cast<int32_t>(verdict.code())};
  append(&head, 1, letter.body);
  append_text(verdict.message(), letter.body);
  return letter;
}

void SpanRuns::keep_failure(uint32_t seq, const Signature& call, const Status& verdict) {
  boards_.keep_failure(seq, call, verdict);
  tell_runs(seq);
}

// What the connection has brought of a run that no member of this client has begun is void. The run
// fails: nothing else will bring these entries.
void SpanRuns::connection_broke(int client, uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  boards_.for_each([&](Board& board) {
    if (!board.arrived.empty() || !board.drop_entries_of(client)) return;
    board.breaks_before = std::min(board.breaks_before, number - 1);
  });
}

void SpanRuns::connection_is_up(int client) {
  if (std::find(others_.begin(), others_.end(), client) == others_.end()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Boards::Failed& failed : boards_.failures()) {
    network_->letters.send(client, letter_of(failed.seq, failed.call, failed.verdict));
  }
  wake_all();
}

Status SpanRuns::settle_here(const SpanRun& run, const Status& verdict) {
  // A member that is absent at a deadline may skip the run, and acknowledges nothing.
  const VerdictKind kind =
      absl::IsDeadlineExceeded(verdict) ? VerdictKind::kTimedOut : VerdictKind::kError;
  const Status settled = meetings_.settle_running(run, kind, verdict);
  return settled.ok() ? verdict : settled;
}

Status SpanRuns::wait_for_verdict(SpanRun& run) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    Board& board = boards_.at(run.op.seq);
    wait_for(lock, kVerdictLimit, [&] { return board.verdict.has_value(); });
  }
  TESSERA_RETURN_IF_ERROR(check(run));
  return fail(
      run, absl::DeadlineExceededError(absl::StrCat(run.label(), ": ", name_of(run.position()),
                                                    " came after the deadline of another member")));
}

Status SpanRuns::end_at_deadline(SpanRun& run, absl::Time start, absl::Time deadline) {
  const bool was_open = !all_came(run);
  // Such a run only waits for members here, which have all arrived too.
  if (!was_open && run.is_inlined() && steady_now() < deadline + kVerdictLimit) {
    return absl::OkStatus();
  }
  // It may have arrived just now.
  if (was_open && network_->links().are_up(others_)) send_arrivals(run);
  if (!was_open) {
    std::unique_lock<std::mutex> lock(mutex_);
    // A member of this host that waits for bytes has more to say.
    if (run.transfers.awaited().empty()) {
      const Board& board = boards_.at(run.op.seq);
      wait_for(lock, kAnswerLimit, [&] { return board.verdict.has_value(); });
    }
    lock.unlock();
    if (const std::optional<Status> failed = failure(run)) return *failed;
  }
  const Status error = missing(run, start, deadline);
  if (was_open && all_came(run)) return absl::OkStatus();
  return fail(run, error);
}

}  // namespace tessera::network
