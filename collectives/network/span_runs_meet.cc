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
#include "collectives/network/arrivals.h"
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
// The error that a member brings has to fit its entry.
constexpr size_t kMostErrorBytes = host::kInlineBytes - 2 * sizeof(int32_t);

// The start of an answer; what the device is doing follows.
constexpr std::byte kIsLate{0};
constexpr std::byte kIsComing{1};
constexpr std::byte kIsOver{2};  // here, so its entry or the verdict is on the way

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
  const std::vector<std::byte> encoded = encode_entry(run, own);
  run.is_sent_apart =
      !run.is_inlined() || (size() > 1 && !postings_.put(op.seq, op.member, encoded));
  meetings_.entries().publish_waiting(run);
  bool is_late = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Board& board = boards_.at(op.seq);
    is_late = board.late.count(run.position()) > 0;
    if (!is_late) {
      board.arrived.insert(run.position());
      board.note_call(op.signature);
      run.num_breaks = std::min(run.num_breaks, board.breaks_before);
    }
    running_[run.member()] = &run;
  }
  if (is_late) return wait_for_verdict(run);
  TESSERA_RETURN_IF_ERROR(rendezvous.arrive(op));
  TESSERA_RETURN_IF_ERROR(tell_arrival(run, encoded));
  TESSERA_RETURN_IF_ERROR(wait_for_entries(run));
  if (!rendezvous.all_arrived(op.seq)) {
    TESSERA_RETURN_IF_ERROR(wait_here(run, [&](absl::Time until) {
      return rendezvous.wait_all_arrived(op.seq, until, run.has_news);
    }));
  }
  // Where it has failed: until the client that settles it has said why. Also for its own letters: a
  // client that has its result may exit. One that a broken connection has lost before its receiver
  // had begun fails the run here. The receivers have begun, as the entries of their hosts say.
  const auto is_received = [&] {
    return run.transfers.are_done() &&
           (run.sent.empty() ||
            !network_->links().have_broken(postings_.receivers(), run.num_breaks));
  };
  TESSERA_RETURN_IF_ERROR(
      wait(run, [&](Board&) { return rendezvous.all_arrived(op.seq) && is_received(); }));
  std::lock_guard<std::mutex> lock(mutex_);
  run.sent.clear();
  return absl::OkStatus();
}

Status SpanRuns::tell_arrival(SpanRun& run, const std::vector<std::byte>& encoded) {
  const uint32_t seq = run.op.seq;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    postings_.post(seq, boards_.at(seq));
  }
  if (!network_->links().are_up(others_)) {
    TESSERA_RETURN_IF_ERROR(wait(run, [&](Board&) { return network_->links().are_up(others_); }));
  }
  if (run.is_sent_apart) {
    for (const int client : others_) send_entry(run, client, Letter::Kind::kEntry, 0, encoded);
  } else if (size() == 1) {
    send_to_receivers(run, encoded);
  } else if (meetings_.rendezvous().all_arrived(seq) || run.has_looked) {
    // The last member here sends for all. Where one is late, the others do not wait for it for
    // long.
    send_arrivals(run);
  }
  run.is_told = true;
  return absl::OkStatus();
}

Status SpanRuns::wait_for_entries(SpanRun& run) {
  bool all_came = false;
  bool is_compared = false;
  while (!all_came) {
    // Members that have arrived may disagree while another one is still missing.
    const auto is_ready = [&](Board& board) {
      all_came = have_all_come(board);
      return all_came || (!is_compared && (board.has_differences || run.differs_here));
    };
    TESSERA_RETURN_IF_ERROR(waits_for_posted(run) ? wait_for_posted(run, is_ready)
                                                  : wait(run, is_ready));
    if (!all_came) TESSERA_RETURN_IF_ERROR(compare_entries(run));
    // The member that differs has the number of a run that was settled meanwhile.
    is_compared = true;
  }
  return absl::OkStatus();
}

bool SpanRuns::all_came(const SpanRun& run) {
  std::lock_guard<std::mutex> lock(mutex_);
  return have_all_come(boards_.at(run.op.seq)) && meetings_.rendezvous().all_arrived(run.op.seq);
}

std::vector<std::byte> SpanRuns::encode_entry(const SpanRun& run, const Status& own) const {
  const MemberEntry& entry = meetings_.rendezvous().entry(run.op.seq, run.member());
  // A record keeps the detail of an earlier run.
  const bool has_detail = host::Entries::has_detail(run);
  const absl::string_view detail(entry.detail,
                                 has_detail ? strnlen(entry.detail, host::kDetailBytes) : 0);
  // The input, or what the member's device tells the others.
  const bool has_board = own.ok() && run.is_on_device() && !is_for_messages_;
  absl::Span<const std::byte> inlined;
  if (has_board) {
    inlined = entry.inlined;
  } else if (own.ok() && run.is_inlined()) {
    inlined = {run.arguments().in, static_cast<size_t>(run.in_bytes())};
  }
  // Each member makes the default label of a run that has none of its own.
  return encode_arrival({.member = run.position(),
                         .signature = entry.signature,
                         .part_count = entry.part_count,
                         .detail = detail,
                         .label = {entry.label, entry.label_size},
                         .error = Status(own.code(), own.message().substr(0, kMostErrorBytes)),
                         .in_count = entry.in_count,
                         .counts = run.peer_counts,
                         .inlined = inlined});
}

void SpanRuns::send_arrivals(SpanRun& run) {
  const std::vector<std::byte> entries = postings_.take(run.op.seq);
  if (!entries.empty()) send_to_receivers(run, entries);
}

void SpanRuns::send_to_receivers(SpanRun& run, const std::vector<std::byte>& entries) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    append(entries.data(), entries.size(), run.sent);
  }
  for (const std::vector<int>& members : places_.by_host()) {
    const int first = members[0];
    if (places_.is_here(first)) continue;
    send_entry(run, all_members()[first].client_id, Letter::Kind::kEntries, first, entries);
  }
}

void SpanRuns::send_entry(SpanRun& run, int client, Letter::Kind kind, int to,
                          const std::vector<std::byte>& body) {
  network_->letters.send(client,
                         {.kind = kind,
                          .seq = run.op.seq,
                          .group = name_,
                          .from = run.position(),
                          .to = to,
                          .body = body},
                         begin_transfer(Transfers::kLetter, run, client));
}

void SpanRuns::send_again(const Letter& not_yet) {
  if (not_yet.to < 0 || not_yet.to >= num_members() || !places_.is_here(not_yet.to)) return;
  Letter letter = {.kind = Letter::Kind::kEntry,
                   .seq = not_yet.seq,
                   .group = name_,
                   .from = not_yet.to,
                   .to = 0,
                   .body = {}};
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const SpanRun* const run = running_[places_.local_index(not_yet.to)];
    if (run == nullptr || run->op.seq != not_yet.seq) return;
    letter.body = run->sent;
  }
  std::set<int> clients;
  for (const std::vector<int>& members : places_.by_host()) {
    if (std::find(members.begin(), members.end(), not_yet.from) == members.end()) continue;
    for (const int member : members) clients.insert(all_members()[member].client_id);
  }
  // The one that answered has kept them.
  clients.erase(all_members()[not_yet.from].client_id);
  for (const int client : clients) network_->letters.send(client, letter);
}

void SpanRuns::read_posted(uint32_t seq) {
  if (postings_.read(seq, boards_.at(seq))) wake_waiters();
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

Status SpanRuns::wait_for_posted(SpanRun& run, absl::FunctionRef<bool(Board&)> is_ready) {
  const uint32_t seq = run.op.seq;
  size_t num_read = 0;
  const auto look = [&] {
    std::lock_guard<std::mutex> lock(mutex_);
    read_posted(seq);
    Board& board = boards_.at(seq);
    num_read = board.num_read;
    return is_ready(board);
  };
  return wait_here(run, [&](absl::Time until) {
    if (look()) return true;
    meetings_.rendezvous().wait_for_news(seq, until, [&] {
      return !postings_.has_more(seq, num_read) && !run.has_news.load(std::memory_order_seq_cst);
    });
    return look();
  });
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
  if (letter.kind == Letter::Kind::kNotYet) return send_again(letter);
  const absl::Span<const std::byte> body = letter.body;
  std::lock_guard<std::mutex> lock(mutex_);
  // Drops letters of a run that is over here.
  if (boards_.is_over(letter.seq)) return;
  Board& board = boards_.at(letter.seq);
  if (letter.kind == Letter::Kind::kEntry || letter.kind == Letter::Kind::kEntries) {
    postings_.note(body, all_members()[letter.from].client_id, board);
    if (letter.kind == Letter::Kind::kEntries) postings_.pass_on(letter.seq, body, board);
    for (SpanRun* const run : running_) {
      if (run != nullptr && run->op.seq == letter.seq && waits_for_posted(*run)) tell(*run);
    }
  } else if (letter.kind == Letter::Kind::kRequest) {
    std::optional<Request> request = decode_request(body);
    const bool is_ours = letter.to >= 0 && letter.to < num_members() && places_.is_here(letter.to);
    if (!request.has_value() || !is_ours) return;
    const int step = request->of_sums ? 1 : 0;
    board.requests[step][letter.to].push_back({letter.from, *std::move(request)});
  } else if (letter.kind == Letter::Kind::kAnswer && !body.empty()) {
    board.doing[letter.from] = text_of(body.subspan(1));
    if (body[0] != kIsLate) board.coming.insert(letter.from);
    if (body[0] == kIsComing) board.have_arrived.insert(letter.from);
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
  std::byte state = kIsOver;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!boards_.is_over(ask.seq)) {
      Board& board = boards_.at(ask.seq);
      state = board.arrived.count(ask.to) > 0 ? kIsComing : kIsLate;
      if (state == kIsLate) board.late.emplace(ask.to, call);
    }
  }
  const GroupMember& member = all_members()[ask.to];
  Letter letter = {.kind = Letter::Kind::kAnswer,
                   .seq = ask.seq,
                   .group = name_,
                   .from = ask.to,
                   .to = ask.from,
                   .body = {state}};
  append_text(host::last_seen(resources().link(), member.client_id, member.ordinal).to_string(),
              letter.body);
  network_->letters.send(all_members()[ask.from].client_id, letter);
}

}  // namespace tessera::network
