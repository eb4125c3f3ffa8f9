// SPDX-License-Identifier: Apache-2.0
//
// How the members of a group that spans hosts meet: what they tell each other, how they wait, and
// the verdict of a run that fails.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/format.h"
#include "collectives/host/last_seen.h"
#include "collectives/host/rendezvous_texts.h"
#include "collectives/network/letter_body.h"
#include "collectives/network/span_runs.h"

namespace tessera::network {
namespace {

using host::GroupMember;
using host::MemberEntry;
using host::Rendezvous;
using host::VerdictKind;

// How often a wait looks at what nothing wakes it for: a verdict of another client of this host,
// clients that do not answer, a connection that stays broken.
constexpr absl::Duration kCheckInterval = absl::Milliseconds(100);
// The interval where another member of this client checks.
constexpr absl::Duration kSeldomInterval = absl::Seconds(1);
// The interval after the deadline.
constexpr absl::Duration kLateCheckInterval = absl::Milliseconds(5);
// The error that a member brings has to fit its entry.
constexpr size_t kMostErrorBytes = host::kInlineBytes - 2 * sizeof(int32_t);

// The start of a letter with an entry. Detail, label, the text of the error, the counts and the
// input follow.
struct EntryHead {
  Signature signature;
  int64_t in_count;
  int64_t part_count;
  int64_t num_counts;
  int32_t code;
  uint32_t error_bytes;
  int64_t inlined_bytes;
  uint32_t detail_bytes;
  uint32_t label_bytes;
};

// The start of an answer; what the device is doing follows.
constexpr std::byte kIsComing{1};
constexpr std::byte kIsLate{0};

// An error in the place of the input: an entry that has one has no input.
constexpr int64_t kHasError = -1;  // MemberEntry::in_count
void write_error(const Status& error, host::MemberEntry& entry) {
  if (error.ok()) return;
  entry.in_count = kHasError;
  std::byte* const to = entry.inlined;
  const int32_t code = static_cast<int32_t>(error.code());
  const absl::string_view text = error.message().substr(0, kMostErrorBytes);
  const auto size = static_cast<uint32_t>(text.size());
  std::memcpy(to, &code, sizeof(code));
  std::memcpy(to + sizeof(code), &size, sizeof(size));
  if (size > 0) std::memcpy(to + sizeof(code) + sizeof(size), text.data(), size);
}

Status read_error(const host::MemberEntry& entry) {
  if (entry.in_count != kHasError) return absl::OkStatus();
  const std::byte* const from = entry.inlined;
  int32_t code = 0;
  uint32_t size = 0;
  std::memcpy(&code, from, sizeof(code));
  std::memcpy(&size, from + sizeof(code), sizeof(size));
  return Status(
      static_cast<absl::StatusCode>(code),
      text_of({from + sizeof(code) + sizeof(size), std::min<size_t>(size, kMostErrorBytes)}));
}

}  // namespace

Status SpanRuns::meet(SpanRun& run, Status own) {
  run.num_breaks = network_->links().num_breaks();
  run.next_look = steady_now() + kFirstLook;
  Rendezvous& rendezvous = meetings_.rendezvous();
  const Rendezvous::Op& op = run.op;
  if (own.ok() && !run.collective().replicas().empty()) {
    own = run.labelled(absl::UnimplementedError(
        "replicas that share memory, of a tensor on several hosts; use Replicas::kOwn"));
  }
  Status waited;
  if (own.ok()) {
    waited = mover().wait_for_device(run.collective(), op.member, op.deadline, [&] {
      return is_closing() || run.is_given_up().load(std::memory_order_relaxed);
    });
    if (!absl::IsDeadlineExceeded(waited)) own = run.labelled(waited);
  }
  if (const Status reserved = meetings_.reserve(run, op); !reserved.ok()) {
    return fail(run, reserved);
  }
  // This member itself is late.
  if (absl::IsDeadlineExceeded(waited)) {
    const absl::Time end = std::min(op.deadline, steady_now());
    return fail(run, missing(run, op.start, end));
  }
  const Status filled = meetings_.entries().fill(run);
  if (own.ok()) own = filled;
  MemberEntry& entry = rendezvous.entry(op.seq, op.member);
  if (own.ok() && run.is_inlined() && run.in_bytes() > 0) {
    std::memcpy(entry.inlined, run.arguments().in, run.in_bytes());
  }
  write_error(own, entry);
  meetings_.entries().publish_waiting(run);
  bool is_late = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Board& board = boards_.at(op.seq);
    is_late = board.late.count(run.position()) > 0;
    if (!is_late) board.arrived.insert(run.position());
    running_[run.member()] = &run;
  }
  if (is_late) return wait_for_verdict(run);
  TESSERA_RETURN_IF_ERROR(rendezvous.arrive(op));
  if (!network_->links().are_up(others_)) {
    TESSERA_RETURN_IF_ERROR(wait(run, [&](Board&) { return network_->links().are_up(others_); }));
  }
  send_entry(run, own);
  TESSERA_RETURN_IF_ERROR(wait_for_entries(run));
  if (rendezvous.all_arrived(op.seq)) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(wait_here(run, [&](absl::Time until) {
    return rendezvous.wait_all_arrived(op.seq, until, run.has_news);
  }));
  if (rendezvous.all_arrived(op.seq)) return absl::OkStatus();
  // It has failed: until the client that settles it has said why.
  return wait(run, [&](Board&) { return rendezvous.all_arrived(op.seq); });
}

Status SpanRuns::wait_for_entries(SpanRun& run) {
  const size_t num_far = num_members() - size();
  bool all_came = false;
  bool is_compared = false;
  while (!all_came) {
    // Also for its own letters: a client that has its result may exit. Members that have arrived
    // may disagree while another one is still missing.
    TESSERA_RETURN_IF_ERROR(wait(run, [&](Board& board) {
      if (!run.transfers.are_done()) return false;
      all_came = board.entries.size() == num_far;
      return all_came || (!is_compared && (board.has_differences || run.differs_here));
    }));
    if (!all_came) TESSERA_RETURN_IF_ERROR(compare_entries(run));
    // The member that differs has the number of a run that was settled meanwhile.
    is_compared = true;
  }
  return absl::OkStatus();
}

bool SpanRuns::all_came(const SpanRun& run) {
  std::lock_guard<std::mutex> lock(mutex_);
  const bool far =
      boards_.at(run.op.seq).entries.size() == static_cast<size_t>(num_members() - size());
  return far && meetings_.rendezvous().all_arrived(run.op.seq);
}

void SpanRuns::send_entry(SpanRun& run, const Status& own) {
  const MemberEntry& entry = meetings_.rendezvous().entry(run.op.seq, run.member());
  // A record keeps the detail of an earlier run.
  const bool has_detail = host::Entries::has_detail(run);
  const absl::string_view detail(entry.detail,
                                 has_detail ? strnlen(entry.detail, host::kDetailBytes) : 0);
  const absl::string_view text = own.message().substr(0, kMostErrorBytes);
  // The input, or what the member's device tells the others.
  const bool has_board = own.ok() && run.is_on_device() && !is_for_messages_;
  absl::Span<const std::byte> inlined;
  if (has_board) {
    inlined = entry.inlined;
  } else if (own.ok() && run.is_inlined()) {
    inlined = {run.arguments().in, static_cast<size_t>(run.in_bytes())};
  }
  // Each member makes the default label of a run that has none of its own.
  const absl::string_view label(entry.label, entry.label_size);
  const EntryHead head = {.signature = entry.signature,
                          .in_count = entry.in_count,
                          .part_count = entry.part_count,
                          .num_counts = static_cast<int64_t>(run.peer_counts.size()),
                          .code = static_cast<int32_t>(own.code()),
                          .error_bytes = static_cast<uint32_t>(text.size()),
                          .inlined_bytes = static_cast<int64_t>(inlined.size()),
                          .detail_bytes = static_cast<uint32_t>(detail.size()),
                          .label_bytes = static_cast<uint32_t>(label.size())};
  Letter letter = {.kind = Letter::Kind::kEntry,
                   .seq = run.op.seq,
                   .group = name_,
                   .from = run.position(),
                   .to = 0,
                   .body = {}};
  append(&head, 1, letter.body);
  append_text(detail, letter.body);
  append_text(label, letter.body);
  append_text(text, letter.body);
  append(run.peer_counts.data(), run.peer_counts.size(), letter.body);
  append(inlined.data(), inlined.size(), letter.body);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    boards_.at(run.op.seq).note_call(run.op.signature);
  }
  for (const int client : others_) {
    network_->letters.send(client, letter, begin_transfer(Transfers::kLetter, run, client));
  }
}

bool SpanRuns::differ_here(const SpanRun& run) const {
  const Rendezvous& rendezvous = meetings_.rendezvous();
  // A settled run has its error already.
  if (!rendezvous.all_arrived(run.op.seq)) return false;
  for (int index = 0; index < size(); ++index) {
    if (rendezvous.entry(run.op.seq, index).signature != run.op.signature) return true;
  }
  return false;
}

bool SpanRuns::agree(const SpanRun& run) {
  const Rendezvous& rendezvous = meetings_.rendezvous();
  for (int index = 0; index < size(); ++index) {
    const MemberEntry& entry = rendezvous.entry(run.op.seq, index);
    if (entry.signature != run.op.signature || !read_error(entry).ok()) return false;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  const Board& board = boards_.at(run.op.seq);
  return !board.has_differences && !board.has_errors;
}

Status SpanRuns::compare_entries(const SpanRun& run) {
  const Rendezvous& rendezvous = meetings_.rendezvous();
  const std::vector<bool> here = rendezvous.arrivals(run.op.seq);
  std::vector<host::Statement> statements;
  Status error;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const Board& board = boards_.at(run.op.seq);
    for (int m = 0; m < num_members(); ++m) {
      if (places_.is_here(m)) {
        const int index = places_.local_index(m);
        if (!here[index]) continue;
        const MemberEntry& entry = rendezvous.entry(run.op.seq, index);
        statements.push_back(host::statement_of(rendezvous, index, entry));
        if (entry.label_size == 0) statements.back().label.clear();
        error.Update(read_error(entry));
      } else if (const auto it = board.entries.find(m); it != board.entries.end()) {
        statements.push_back(it->second.statement);
        statements.back().member = name_of(m);
        error.Update(it->second.error);
      }
    }
  }
  for (host::Statement& statement : statements) {
    if (!statement.label.empty()) continue;
    const Signature& agreed = statement.signature;
    statement.label =
        default_label(agreed.kind, agreed.dtype, agreed.reduction, agreed.count, device_ids());
  }
  for (size_t k = 1; k < statements.size(); ++k) {
    error.Update(host::describe_difference(statements[0], statements[k], run.op.detail_field,
                                           num_members(), run.op.seq));
  }
  return error.ok() ? error : fail(run, error);
}

absl::Time SpanRuns::next_check(const SpanRun& run) {
  const absl::Time now = steady_now();
  if (checker_ == nullptr) checker_ = &run;
  // A member that waits for bytes asks their senders whether they are there.
  const bool is_often = checker_ == &run || !run.transfers.awaited().empty();
  absl::Time deadline = run.op.deadline;
  if (run.waited.has_value()) deadline = std::min(deadline, run.waited->deadline);
  if (deadline <= now) return now + kLateCheckInterval;
  absl::Time next = std::min(deadline, now + (is_often ? kCheckInterval : kSeldomInterval));
  if (!is_for_messages_) next = std::min(next, run.next_look);
  return next;
}

Status SpanRuns::wait(SpanRun& run, absl::FunctionRef<bool(Board&)> is_ready) {
  while (true) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      Board& board = boards_.at(run.op.seq);
      const auto has_failed = [&] {
        return board.verdict.has_value() || !run.transfers.error().ok() || run.ending.has_value();
      };
      const absl::Duration limit = next_check(run) - steady_now();
      wait_for(lock, limit, [&] { return has_failed() || run.is_waited_new || is_ready(board); });
      if (!has_failed() && is_ready(board)) return absl::OkStatus();
    }
    look_for_circles(run);
    TESSERA_RETURN_IF_ERROR(check(run));
  }
}

bool SpanRuns::wait_for(std::unique_lock<std::mutex>& lock, absl::Duration limit,
                        absl::FunctionRef<bool()> is_ready) {
  if (is_ready()) return true;
  Waiter waiter{.is_ready = is_ready};
  waiters_.push_back(&waiter);
  lock.unlock();
  network_->engine->wait(waiter.wait, limit);
  lock.lock();
  std::erase(waiters_, &waiter);
  return is_ready();
}

void SpanRuns::wake_waiters() {
  for (Waiter* const waiter : waiters_) {
    if (waiter->is_ready()) network_->engine->wake(waiter->wait);
  }
}

void SpanRuns::wake_all() {
  for (Waiter* const waiter : waiters_) network_->engine->wake(waiter->wait);
  for (SpanRun* const run : running_) {
    if (run != nullptr) tell(*run);
  }
}

void SpanRuns::tell(SpanRun& run) {
  run.has_news.store(true, std::memory_order_seq_cst);
  meetings_.rendezvous().nudge(run.op.seq);
}

void SpanRuns::tell_runs(uint32_t seq) {
  for (SpanRun* const run : running_) {
    if (run != nullptr && run->op.seq == seq) tell(*run);
  }
}

Status SpanRuns::wait_here(SpanRun& run, absl::FunctionRef<bool(absl::Time)> wait_until) {
  while (true) {
    absl::Time until;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      until = next_check(run);
    }
    if (wait_until(until)) return absl::OkStatus();
    run.has_news.store(false, std::memory_order_seq_cst);
    look_for_circles(run);
    TESSERA_RETURN_IF_ERROR(check(run));
  }
}

void SpanRuns::read(Letter letter) {
  const bool is_known =
      letter.from >= 0 && letter.from < num_members() && !places_.is_here(letter.from);
  if (!is_known) return;
  if (letter.kind == Letter::Kind::kAsk) return answer(letter);
  const absl::Span<const std::byte> body = letter.body;
  std::lock_guard<std::mutex> lock(mutex_);
  // Drops letters of a run that is over here.
  if (boards_.is_over(letter.seq)) return;
  Board& board = boards_.at(letter.seq);
  if (letter.kind == Letter::Kind::kEntry && body.size() >= sizeof(EntryHead)) {
    EntryHead head;
    std::memcpy(&head, body.data(), sizeof(head));
    absl::Span<const std::byte> rest = body.subspan(sizeof(head));
    const size_t count_bytes = static_cast<size_t>(head.num_counts) * sizeof(int64_t);
    const size_t text_bytes = size_t{head.detail_bytes} + head.label_bytes + head.error_bytes;
    if (rest.size() != text_bytes + count_bytes + static_cast<size_t>(head.inlined_bytes)) return;
    const auto take = [&rest](size_t size) {
      const absl::Span<const std::byte> taken = rest.subspan(0, size);
      rest.remove_prefix(size);
      return taken;
    };
    Entry entry;
    const std::string detail = text_of(take(head.detail_bytes));
    const std::string label = text_of(take(head.label_bytes));
    entry.statement = {"", head.signature, head.part_count, detail, label};
    const std::string error = text_of(take(head.error_bytes));
    if (head.code != 0) entry.error = Status(static_cast<absl::StatusCode>(head.code), error);
    entry.in_count = head.in_count;
    entry.counts.resize(head.num_counts);
    if (count_bytes > 0) std::memcpy(entry.counts.data(), rest.data(), count_bytes);
    rest.remove_prefix(count_bytes);
    entry.inlined.assign(rest.begin(), rest.end());
    board.note_entry(letter.from, std::move(entry));
  } else if (letter.kind == Letter::Kind::kRequest) {
    std::optional<Request> request = decode_request(body);
    const bool is_ours = letter.to >= 0 && letter.to < num_members() && places_.is_here(letter.to);
    if (!request.has_value() || !is_ours) return;
    const int step = request->of_sums ? 1 : 0;
    board.requests[step][letter.to].push_back({letter.from, *std::move(request)});
  } else if (letter.kind == Letter::Kind::kAnswer && !body.empty()) {
    board.doing[letter.from] = text_of(body.subspan(1));
    if (body[0] == kIsComing) board.coming.insert(letter.from);
  } else if (letter.kind == Letter::Kind::kVerdict && body.size() >= sizeof(VerdictHead)) {
    VerdictHead head;
    std::memcpy(&head, body.data(), sizeof(head));
    const Status verdict(static_cast<absl::StatusCode>(head.code),
                         text_of(body.subspan(sizeof(head))));
    keep_failure(letter.seq, head.signature, verdict);
  }
  wake_waiters();
}

void SpanRuns::answer(const Letter& ask) {
  if (ask.to < 0 || ask.to >= num_members() || !places_.is_here(ask.to)) return;
  Signature call;
  absl::Span<const std::byte> body = ask.body;
  if (!take(body, 1, &call)) return;
  bool is_coming = true;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!boards_.is_over(ask.seq)) {
      Board& board = boards_.at(ask.seq);
      is_coming = board.arrived.count(ask.to) > 0;
      if (!is_coming) board.late.emplace(ask.to, call);
    }
  }
  const GroupMember& member = all_members()[ask.to];
  Letter letter = {.kind = Letter::Kind::kAnswer,
                   .seq = ask.seq,
                   .group = name_,
                   .from = ask.to,
                   .to = ask.from,
                   .body = {is_coming ? kIsComing : kIsLate}};
  append_text(host::last_seen(resources().link(), member.client_id, member.ordinal).to_string(),
              letter.body);
  network_->letters.send(all_members()[ask.from].client_id, letter);
}

}  // namespace tessera::network
