// SPDX-License-Identifier: Apache-2.0
#include "collectives/span/span_wait.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "collectives/host/conflicts.h"
#include "collectives/host/last_seen.h"
#include "collectives/host/member_texts.h"
#include "collectives/span/letter_body.h"
#include "collectives/span/long_waits.h"
#include "job/coordinator/device_wait.h"
#include "job/coordinator/id_ranges.h"

namespace tessera::span {
namespace {

using host::VerdictKind;
using shm::GroupMember;

// How often a wait checks the conditions for which nothing wakes it: a verdict of another client of
// this host, clients that do not answer, a connection that stays broken.
constexpr absl::Duration kCheckInterval = absl::Milliseconds(100);
// The interval where another member of this client checks, and that after the deadline.
constexpr absl::Duration kSeldomInterval = absl::Seconds(1);
constexpr absl::Duration kLateCheckInterval = absl::Milliseconds(5);
// How often a wait sees whether the others answer, which Network asks less often.
constexpr absl::Duration kPingInterval = absl::Milliseconds(100);
// How long to wait for a client's answer about its activity.
constexpr absl::Duration kAnswerLimit = absl::Milliseconds(250);
// How long after its deadline a member has to publish its verdict, before a late member proposes
// one.
constexpr absl::Duration kVerdictLimit = absl::Seconds(1);
// How long a device is held for the end of the other runs of its circle.
constexpr absl::Duration kHoldLimit = absl::Seconds(5);

}  // namespace

// ---- Waits.

absl::Time SpanWait::next_check() {
  const absl::Time now = steady_now();
  if (span_.checker == nullptr) span_.checker = &news_;
  // A member that waits for bytes asks their senders whether they are there.
  const bool is_often = span_.checker == &news_ || !news_.transfers.awaited().empty();
  absl::Time deadline = op.deadline;
  if (news_.waited.has_value()) deadline = std::min(deadline, news_.waited->deadline);
  if (deadline <= now) return now + kLateCheckInterval;
  absl::Time next = std::min(deadline, now + (is_often ? kCheckInterval : kSeldomInterval));
  if (!span_.is_for_messages) next = std::min(next, next_look);
  return next;
}

Status SpanWait::wait(absl::FunctionRef<bool(Board&)> is_ready) {
  while (true) {
    {
      std::unique_lock<std::mutex> lock(span_.mutex);
      Board& board = span_.boards.at(op.seq);
      const auto has_failed = [&] {
        return board.verdict.has_value() || !news_.transfers.error().ok() ||
               news_.ending.has_value();
      };
      const absl::Duration limit = next_check() - steady_now();
      span_.wait_for(lock, limit,
                     [&] { return has_failed() || news_.is_waited_new || is_ready(board); });
      if (!has_failed() && is_ready(board)) return absl::OkStatus();
    }
    look_for_circles();
    TESSERA_RETURN_IF_ERROR(check());
  }
}

Status SpanWait::wait_here(absl::FunctionRef<bool(absl::Time)> wait_until) {
  while (true) {
    absl::Time until;
    {
      std::lock_guard<std::mutex> lock(span_.mutex);
      until = next_check();
    }
    if (wait_until(until)) return absl::OkStatus();
    news_.has_news.store(false, std::memory_order_seq_cst);
    look_for_circles();
    TESSERA_RETURN_IF_ERROR(check());
  }
}

Status SpanWait::wait_for_posted(absl::FunctionRef<bool(Board&)> is_ready) {
  size_t num_read = 0;
  const auto look = [&] {
    std::lock_guard<std::mutex> lock(span_.mutex);
    span_.read_posted(op.seq);
    Board& board = span_.boards.at(op.seq);
    num_read = board.num_read;
    return is_ready(board);
  };
  return wait_here([&](absl::Time until) {
    if (look()) return true;
    span_.rendezvous().wait_for_news(op.seq, until, [&] {
      return !span_.postings.has_more(op.seq, num_read) &&
             !news_.has_news.load(std::memory_order_seq_cst);
    });
    return look();
  });
}

Status SpanWait::wait_for_verdict() {
  {
    std::unique_lock<std::mutex> lock(span_.mutex);
    Board& board = span_.boards.at(op.seq);
    span_.wait_for(lock, kVerdictLimit, [&] { return board.verdict.has_value(); });
  }
  TESSERA_RETURN_IF_ERROR(check());
  return fail(absl::DeadlineExceededError(absl::StrCat(
      label(), ": ", span_.name_of(position()), " came after the deadline of another member")));
}

Status SpanWait::check() {
  Status transfer_error;
  std::optional<RunNews::Waited> waited;
  std::optional<RunNews::Ending> ending;
  absl::Span<const int> needed;
  bool awaits_others = true;
  {
    std::lock_guard<std::mutex> lock(span_.mutex);
    span_.read_posted(op.seq);
    needed = needed_clients();
    awaits_others = !needed.empty() || !span_.have_all_come(span_.boards.at(op.seq));
    waited = news_.waited;
    news_.is_waited_new = false;
    ending = std::exchange(news_.ending, std::nullopt);
    transfer_error = news_.transfers.error();
  }
  if (ending.has_value()) return end_in_circle(*ending);
  if (const std::optional<Status> failed = failure()) return *failed;
  if (span_.group.may_be_interrupted()) {
    const Status why = interruption();
    if (!why.ok()) return fail(why);
  }
  if (transfer_error.ok()) transfer_error = span_.network->links().find_broken(needed, num_breaks);
  if (awaits_others && transfer_error.ok() && steady_now() >= next_ping_) {
    next_ping_ = steady_now() + kPingInterval;
    transfer_error = span_.network->find_unreachable(awaited_clients());
  }
  if (!transfer_error.ok()) return fail(labelled(transfer_error));
  if (waited.has_value()) return end_at_deadline(waited->called, waited->deadline);
  if (steady_now() < op.deadline) return absl::OkStatus();
  return end_at_deadline(op.start, op.deadline);
}

// A run whose inputs are in the entries needs no other host once it has them and has told its own.
// A client that reads what another one posts gets no entries by connections of its own.
absl::Span<const int> SpanWait::needed_clients() const {
  const Postings& postings = span_.postings;
  const bool needs_all = !is_told || !is_inlined() || is_sent_apart;
  if (needs_all || (!postings.reads() && !span_.have_all_come(span_.boards.at(op.seq)))) {
    return span_.others;
  }
  return news_.sent.empty() ? absl::Span<const int>() : postings.receivers();
}

std::vector<int> SpanWait::awaited_clients() const {
  std::set<int> clients;
  std::lock_guard<std::mutex> lock(span_.mutex);
  const Board& board = span_.boards.at(op.seq);
  for (int m = 0; m < span_.num_members(); ++m) {
    if (span_.places.is_here(m) || board.entries.count(m) > 0) continue;
    clients.insert(span_.group.all_members()[m].client_id);
  }
  for (const auto& [client, _] : news_.transfers.awaited()) clients.insert(client);
  return clients.empty() ? span_.others : std::vector<int>(clients.begin(), clients.end());
}

// ---- Letters.

void SpanWait::send_arrivals() {
  const std::vector<std::byte> entries = span_.postings.take(op.seq);
  if (!entries.empty()) send_to_receivers(entries);
}

void SpanWait::send_to_receivers(const std::vector<std::byte>& entries) {
  {
    std::lock_guard<std::mutex> lock(span_.mutex);
    append(entries.data(), entries.size(), news_.sent);
  }
  for (const std::vector<int>& members : span_.places.by_host()) {
    const int first = members[0];
    if (span_.places.is_here(first)) continue;
    const int client = span_.group.all_members()[first].client_id;
    send_entry(client, Letter::Kind::kEntries, first, entries);
  }
}

void SpanWait::send_entry(int client, Letter::Kind kind, int to,
                          const std::vector<std::byte>& body) {
  span_.network->letters.send(client,
                              {.kind = kind,
                               .seq = op.seq,
                               .group = span_.name,
                               .from = position(),
                               .to = to,
                               .body = body},
                              begin_transfer(Transfers::kLetter, client));
}

transport::Engine::Done SpanWait::begin_transfer(Transfers::Kind kind, int client) {
  {
    std::lock_guard<std::mutex> lock(span_.mutex);
    news_.transfers.begin(kind, client);
  }
  return [self = std::static_pointer_cast<SpanWait>(executor_ref()), kind,
          client](const Status& status) {
    SpanState& span = self->span_;
    // A letter has been sent when it is in a buffer here.
    if (status.ok() && kind != Transfers::kLetter) span.network->note_contact(client);
    std::lock_guard<std::mutex> lock(span.mutex);
    self->news_.transfers.end(kind, client, status);
    span.wake_waiters();
    if (!status.ok() && self->news_.reads_posted) span.nudge(self->news_);
  };
}

StatusOr<std::byte*> SpanWait::stage(const Box& box) {
  const int64_t bytes = box.num_elements() * dtype_size(collective().dtype());
  StatusOr<ArenaPool::Block> block = span_.group.resources().pool().allocate(bytes);
  if (!block.ok()) return fail(labelled(block.status()));
  staged_.push_back(*std::move(block));
  return staged_.back().data();
}

// ---- Verdicts.

std::optional<Status> SpanWait::failure() {
  std::optional<Status> verdict;
  {
    std::lock_guard<std::mutex> lock(span_.mutex);
    verdict = span_.boards.at(op.seq).verdict;
  }
  if (verdict.has_value()) return settle_here(*verdict);
  // A member on this host has failed, or was found to wait in a circle.
  if (!span_.rendezvous().records().has_result(op.seq)) return std::nullopt;
  const Status settled = settle_running(VerdictKind::kError, Status());
  return settled.ok() ? settled : propose(settled);
}

SpanState::Verdict SpanWait::decide(const Status& error, absl::Time deadline) const {
  deadline = std::min(deadline, op.deadline);
  {
    std::lock_guard<std::mutex> lock(span_.mutex);
    if (news_.waited.has_value()) deadline = std::min(deadline, news_.waited->deadline);
  }
  return span_.decide(op.seq, op.signature, error, deadline);
}

Status SpanWait::propose(const Status& error, absl::Time deadline) {
  const SpanState::Verdict verdict = decide(error, deadline);
  if (verdict.is_new) span_.tell(op.seq, op.signature, verdict.status);
  return verdict.status;
}

Status SpanWait::fail(const Status& error) {
  const SpanState::Verdict verdict = decide(error, absl::InfiniteFuture());
  const Status settled = settle_here(verdict.status);
  if (verdict.is_new) span_.tell(op.seq, op.signature, verdict.status);
  return settled;
}

Status SpanWait::settle_here(const Status& verdict) {
  // A member that is absent at a deadline may skip the run, and acknowledges nothing.
  const VerdictKind kind =
      absl::IsDeadlineExceeded(verdict) ? VerdictKind::kTimedOut : VerdictKind::kError;
  const Status settled = settle_running(kind, verdict);
  return settled.ok() ? verdict : settled;
}

// ---- Deadlines.

Status SpanWait::end_at_deadline(absl::Time start, absl::Time deadline) {
  const bool was_open = !span_.all_came(op.seq);
  // Such a run only waits for members here, which have all arrived too.
  if (!was_open && is_inlined() && steady_now() < deadline + kVerdictLimit) {
    return absl::OkStatus();
  }
  // It may have arrived just now.
  if (was_open && span_.network->links().are_up(span_.others)) send_arrivals();
  if (!was_open) {
    std::unique_lock<std::mutex> lock(span_.mutex);
    // A member of this host that waits for bytes has more to say.
    if (news_.transfers.awaited().empty()) {
      const Board& board = span_.boards.at(op.seq);
      span_.wait_for(lock, kAnswerLimit, [&] { return board.verdict.has_value(); });
    }
    lock.unlock();
    if (const std::optional<Status> failed = failure()) return *failed;
  }
  const Status error = missing(start, deadline);
  if (was_open && span_.all_came(op.seq)) return absl::OkStatus();
  return fail(error);
}

Status SpanWait::missing(absl::Time start, absl::Time deadline) {
  const shm::HostLink& link = span_.group.resources().link();
  const std::vector<bool> here = span_.rendezvous().records().arrivals(op.seq);
  std::vector<bool> arrived(span_.num_members());
  {
    std::lock_guard<std::mutex> lock(span_.mutex);
    const Board& board = span_.boards.at(op.seq);
    for (int m = 0; m < span_.num_members(); ++m) arrived[m] = span_.has_come(m, here, board);
  }
  const std::map<int, std::string> doing = ask_missing(arrived);
  std::string awaited;
  {
    std::lock_guard<std::mutex> lock(span_.mutex);
    // A member that has said that it has arrived is not missing, wherever its entry is.
    for (const int member : span_.boards.at(op.seq).have_arrived) arrived[member] = true;
    for (const auto& [client, _] : news_.transfers.awaited()) {
      absl::StrAppend(&awaited, awaited.empty() ? "" : ", ", link.members()[client].to_string());
    }
  }
  const bool is_open = std::find(arrived.begin(), arrived.end(), false) != arrived.end();
  const Status error = host::describe_missing(
      {label(), span_.group.all_members(), arrived, is_open, deadline - start},
      [&](int client) { return link.members()[client].to_string(); },
      [&](const GroupMember& member) {
        if (link.members().is_on_host(member.client_id)) {
          return host::describe_last_seen(host::last_seen(link, member.client_id, member.ordinal));
        }
        const auto known = doing.find(member.device_id);
        return known == doing.end() ? std::string() : known->second;
      });
  if (is_open || awaited.empty()) return error;
  return Status(error.code(), absl::StrCat(error.message(), "; ", span_.name_of(position()),
                                           " waits for bytes of ", awaited));
}

std::map<int, std::string> SpanWait::ask_missing(const std::vector<bool>& arrived) {
  const std::vector<GroupMember>& members = span_.group.all_members();
  size_t num_asked = 0;
  std::vector<std::byte> call;
  append(&op.signature, 1, call);
  for (int m = 0; m < span_.num_members(); ++m) {
    if (arrived[m] || span_.places.is_here(m)) continue;
    ++num_asked;
    span_.network->letters.send(members[m].client_id, {.kind = Letter::Kind::kAsk,
                                                       .seq = op.seq,
                                                       .group = span_.name,
                                                       .from = position(),
                                                       .to = m,
                                                       .body = call});
  }
  std::unique_lock<std::mutex> lock(span_.mutex);
  Board& board = span_.boards.at(op.seq);
  const auto has_all = [&] {
    for (const int member : board.coming) {
      if (board.entries.count(member) == 0) return false;
    }
    return board.doing.size() >= num_asked;
  };
  const absl::Time limit = steady_now() + kAnswerLimit;
  while (!has_all() && steady_now() < limit) {
    // New postings wake no wait for letters.
    span_.wait_for(lock, span_.postings.reads() ? kLateCheckInterval : kAnswerLimit, has_all);
    span_.read_posted(op.seq);
  }
  std::map<int, std::string> doing;
  for (const auto& [member, text] : board.doing) doing[members[member].device_id] = text;
  return doing;
}

// ---- Circles of waits.

void SpanWait::look_for_circles() {
  if (span_.is_for_messages) return;
  const absl::Time now = steady_now();
  if (now < next_look) return;
  const bool is_first = !std::exchange(has_looked, true);
  next_look = is_first ? now + shm::kLongWait - kFirstLook : now + shm::kLongWait;
  if (is_first) {
    // A member of this host is late: tells other hosts which members have arrived.
    if (span_.network->links().are_up(span_.others)) send_arrivals();
    // As for a wait on one host: the last member of a circle sees the waits of the others.
    host::Rendezvous& rendezvous = span_.rendezvous();
    if (rendezvous.records().is_open(op.seq)) host::check_conflicts(rendezvous.records(), op);
    std::string shown = label();
    const bool differs_here = span_.differ_here(op.seq, op.signature);
    std::lock_guard<std::mutex> lock(span_.mutex);
    news_.differs_here = differs_here;
    news_.shown = RunNews::Shown{std::move(shown), now - kFirstLook, op.name_hash};
  } else {
    span_.network->note_long_wait();
  }
  end_same_name();
}

// A barrier on this host that waits elsewhere. The coordinator finds one on another host.
void SpanWait::end_same_name() {
  if (op.name_hash == 0) return;
  const std::optional<host::OperationWait> other =
      host::find_same_name(span_.rendezvous().records(), op);
  if (!other.has_value()) return;
  std::optional<LocalWait> own = span_.wait_of(span_.group.all_members()[position()].device_id);
  if (!own.has_value()) return;
  std::vector<int> ids;
  for (const GroupMember& member : other->group.members()) ids.push_back(member.device_id);
  DeviceWait theirs = {.device = other->device.device_id,
                       .run = {},
                       .spans_hosts = false,
                       .name_hash = other->name_hash,
                       .label = other->label,
                       .group = IdRanges::list_of(ids),
                       .missing = {}};
  const Status error = span_.network->describe_circle({std::move(own->wait), std::move(theirs)});
  propose(error).IgnoreError();
  other->end(error);
}

Status SpanWait::end_in_circle(const RunNews::Ending& ending) {
  // A deadline has ended the circle, and the others came.
  const bool is_over = span_.all_came(op.seq);
  const Status verdict = is_over ? Status() : fail(ending.error);
  ending.next();
  if (is_over) return verdict;
  std::unique_lock<std::mutex> lock(span_.mutex);
  if (ending.is_held) span_.wait_for(lock, kHoldLimit, [&] { return news_.is_released; });
  return verdict;
}

}  // namespace tessera::span
