// SPDX-License-Identifier: Apache-2.0
#include "collectives/span/span_run.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/format.h"
#include "collectives/host/meetings.h"
#include "collectives/host/member_texts.h"
#include "collectives/host/rendezvous.h"
#include "collectives/host/rendezvous_texts.h"
#include "collectives/span/arrivals.h"
#include "collectives/span/letter_body.h"
#include "collectives/span/span_move.h"

namespace tessera::span {
namespace {

using host::MemberEntry;
using host::Rendezvous;

// The error of a member has to fit into its entry.
constexpr size_t kMostErrorBytes = host::kInlineBytes - 2 * sizeof(int32_t);

// An error in the place of the input: an entry that has one has no input.
constexpr int64_t kHasError = -1;  // MemberEntry::in_count
void write_error(const Status& error, MemberEntry& entry) {
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

Status read_error(const MemberEntry& entry) {
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

SpanRun::SpanRun(SpanState& state, int member, Collective::Ptr collective, Arguments&& arguments)
    : SpanWait(state, member, std::move(collective), std::move(arguments)) {
  op.holds_device = !state.is_for_messages;
  // The members here know nothing of those elsewhere: what they show of the run needs its label.
  this->arguments().label = label();
  do_peers_write_output |= divides(this->collective(), state);
  news().reads_posted = state.postings.reads() && is_inlined();
}

void SpanRun::placed() {
  if (op.seq != 0) return;
  uint32_t& next_seq = span().meetings.next_seq(member());
  const uint32_t first = next_seq;
  uint32_t seq = first;
  {
    std::lock_guard<std::mutex> lock(span().mutex);
    for (; skips(seq); seq = host::seq_after(seq)) span().boards.retire(seq);
  }
  if (seq != first) span().rendezvous().pass_over(first, seq);
  op.seq = news().seq = seq;
  next_seq = host::seq_after(seq);
}

bool SpanRun::skips(uint32_t seq) const {
  const Signature& call = op.signature;
  if (const Boards::Failed* const failed = span().boards.find_failure(seq)) {
    return !failed->is_of(call);
  }
  if (const Board* const board = span().boards.find(seq)) {
    const auto late = board->late.find(position());
    if (late != board->late.end() && late->second != call) return true;
  }
  // Clients of one host send each other no verdicts.
  const Rendezvous::Place place = span().rendezvous().align(seq, call);
  return !place.is_left_behind && place.seq != seq;
}

Status SpanRun::execute() {
  Status status;
  start_clock();
  if (run_stage().begin()) {
    status = meet_and_move();
    // A message is at its receiver, or is its sender's again: no device is behind.
    span().is_for_messages ? complete(status) : finish(status);
  } else {
    status = completion().wait();
    reserve(op).IgnoreError();
    settle_here(status).IgnoreError();
  }
  if (!status.ok()) acknowledge();
  retire();
  return status;
}

Status SpanRun::meet_and_move() {
  Rendezvous& rendezvous = span().rendezvous();
  SpanMove move(*this);
  Status status = meet(local_error());
  if (status.ok() && !agree()) status = compare_entries();
  // An exchange ends when its letters have been sent. Without one the run waits for them before it
  // writes: a run that fails with its connection leaves its memory as it was.
  if (status.ok() && (is_inlined() || is_moved_by_device())) status = wait_for_own_letters();
  if (status.ok()) status = move.run();
  if (status.ok()) status = rendezvous.finish(op.seq, 1, Rendezvous::Then::kWait, &op);
  if (status.ok()) {
    status = wait_here(
        [&](absl::Time until) { return rendezvous.wait_left(op.seq, until, news().has_news); });
  }
  if (status.ok()) status = rendezvous.wait_finished(op, span().meetings.give_up_from());
  if (!status.ok()) {
    // The record of this host may have a text of its own; the verdict must be equal on all hosts.
    status = propose(status);
    abandon(status, /*found_mismatch=*/true);
    return status;
  }
  Status own_error = move.own_error();
  own_error.Update(leave_device());
  TESSERA_RETURN_IF_ERROR(own_error);
  if (const std::byte* out = copy(&Copies::out)) {
    std::memcpy(arguments().out, out, out_bytes(collective()));
  }
  return absl::OkStatus();
}

Status SpanRun::meet(Status own) {
  num_breaks = span().network->links().num_breaks();
  next_look = steady_now() + kFirstLook;
  const Status waited = check_own(own);
  if (const Status reserved = reserve(op); !reserved.ok()) {
    return fail(reserved);
  }
  // This member itself is late.
  if (!waited.ok()) return fail(missing(op.start, std::min(op.deadline, steady_now())));
  const std::vector<std::byte> encoded = fill_entry(std::move(own));
  publish_waiting();
  if (!note_arrival()) return wait_for_verdict();
  Rendezvous& rendezvous = span().rendezvous();
  TESSERA_RETURN_IF_ERROR(rendezvous.arrive(op));
  TESSERA_RETURN_IF_ERROR(tell_arrival(encoded));
  TESSERA_RETURN_IF_ERROR(wait_for_entries());
  if (!rendezvous.records().all_arrived(op.seq)) {
    TESSERA_RETURN_IF_ERROR(wait_here([&](absl::Time until) {
      return rendezvous.wait_all_arrived(op.seq, until, news().has_news);
    }));
  }
  // Where it has failed: until the client that settles it has said why.
  return wait([&](Board&) { return rendezvous.records().all_arrived(op.seq); });
}

Status SpanRun::check_own(Status& own) {
  if (own.ok() && !collective().replicas().empty()) {
    own = labelled(absl::UnimplementedError(
        "replicas that share memory, of a tensor on several hosts; use Replicas::kOwn"));
  }
  if (!own.ok()) return absl::OkStatus();
  const Status waited = wait_for_device(op.deadline);
  if (absl::IsDeadlineExceeded(waited)) return waited;
  own = labelled(waited);
  return absl::OkStatus();
}

std::vector<std::byte> SpanRun::fill_entry(Status own) {
  own.Update(fill());
  MemberEntry& entry = span().rendezvous().records().entry(op.seq, op.member);
  if (own.ok() && is_inlined() && in_bytes(collective()) > 0) {
    std::memcpy(entry.inlined, arguments().in, in_bytes(collective()));
  }
  write_error(own, entry);
  std::vector<std::byte> encoded = encode_entry(own);
  is_sent_apart = !is_inlined() ||
                  (span().group.size() > 1 && !span().postings.put(op.seq, op.member, encoded));
  return encoded;
}

bool SpanRun::note_arrival() {
  std::lock_guard<std::mutex> lock(span().mutex);
  Board& board = span().boards.at(op.seq);
  const bool is_late = board.late.count(position()) > 0;
  if (!is_late) {
    board.arrived.insert(position());
    board.note_call(op.signature);
    num_breaks = std::min(num_breaks, board.breaks_before);
  }
  span().running[member()] = &news();
  return !is_late;
}

std::vector<std::byte> SpanRun::encode_entry(const Status& own) const {
  const MemberEntry& entry = span().rendezvous().records().entry(op.seq, member());
  // A record keeps the detail of an earlier run.
  const absl::string_view detail(entry.detail,
                                 has_detail() ? strnlen(entry.detail, host::kDetailBytes) : 0);
  // The input, or the board of the member's device.
  absl::Span<const std::byte> inlined;
  if (own.ok() && is_moved_by_device()) {
    inlined = entry.inlined;
  } else if (own.ok() && is_inlined()) {
    inlined = {arguments().in, static_cast<size_t>(in_bytes(collective()))};
  }
  // Each member makes the default label of a run that has none of its own.
  return encode_arrival({.member = position(),
                         .signature = entry.signature,
                         .part_count = entry.part_count,
                         .detail = detail,
                         .label = {entry.label, entry.label_size},
                         .error = Status(own.code(), own.message().substr(0, kMostErrorBytes)),
                         .in_count = entry.in_count,
                         .counts = peer_counts,
                         .inlined = inlined});
}

Status SpanRun::tell_arrival(const std::vector<std::byte>& encoded) {
  {
    std::lock_guard<std::mutex> lock(span().mutex);
    span().postings.post(op.seq, span().boards.at(op.seq));
  }
  const auto are_up = [&] { return span().network->links().are_up(span().others); };
  if (!are_up()) TESSERA_RETURN_IF_ERROR(wait([&](Board&) { return are_up(); }));
  if (is_sent_apart) {
    for (const int client : span().others) send_entry(client, Letter::Kind::kEntry, 0, encoded);
  } else if (span().group.size() == 1) {
    send_to_receivers(encoded);
  } else if (span().rendezvous().records().all_arrived(op.seq) || has_looked) {
    // The last member here sends for all. Where one is late, the others do not wait for it for
    // long.
    send_arrivals();
  }
  is_told = true;
  return absl::OkStatus();
}

Status SpanRun::wait_for_entries() {
  bool all_came = false;
  bool is_compared = false;
  while (!all_came) {
    // Members that have arrived may disagree while another one is still missing.
    const auto is_ready = [&](Board& board) {
      all_came = span().have_all_come(board);
      return all_came || (!is_compared && (board.has_differences || news().differs_here));
    };
    TESSERA_RETURN_IF_ERROR(news().reads_posted ? wait_for_posted(is_ready) : wait(is_ready));
    if (!all_came) TESSERA_RETURN_IF_ERROR(compare_entries());
    // The member that differs has the number of a run that was settled meanwhile.
    is_compared = true;
  }
  return absl::OkStatus();
}

// A client that has its result may exit. Where a broken connection has lost a letter before its
// receiver had begun, the run fails here. The receivers have begun, as the entries of their hosts
// say.
Status SpanRun::wait_for_own_letters() {
  TESSERA_RETURN_IF_ERROR(wait([&](Board&) {
    return news().transfers.are_done() &&
           (news().sent.empty() ||
            !span().network->links().have_broken(span().postings.receivers(), num_breaks));
  }));
  std::lock_guard<std::mutex> lock(span().mutex);
  news().sent.clear();
  return absl::OkStatus();
}

bool SpanRun::agree() {
  for (int index = 0; index < span().group.size(); ++index) {
    const MemberEntry& entry = span().rendezvous().records().entry(op.seq, index);
    if (entry.signature != op.signature || !read_error(entry).ok()) return false;
  }
  std::lock_guard<std::mutex> lock(span().mutex);
  const Board& board = span().boards.at(op.seq);
  return !board.has_differences && !board.has_errors;
}

Status SpanRun::compare_entries() {
  const Rendezvous& rendezvous = span().rendezvous();
  const std::vector<bool> here = rendezvous.records().arrivals(op.seq);
  std::vector<host::Statement> statements;
  Status error;
  {
    std::lock_guard<std::mutex> lock(span().mutex);
    const Board& board = span().boards.at(op.seq);
    for (int m = 0; m < span().num_members(); ++m) {
      if (span().places.is_here(m)) {
        const int index = span().places.local_index(m);
        if (!here[index]) continue;
        const MemberEntry& entry = rendezvous.records().entry(op.seq, index);
        statements.push_back(host::statement_of(rendezvous.records(), index, entry));
        if (entry.label_size == 0) statements.back().label.clear();
        error.Update(read_error(entry));
      } else if (const auto it = board.entries.find(m); it != board.entries.end()) {
        statements.push_back(it->second.statement);
        statements.back().member = span().name_of(m);
        error.Update(it->second.error);
      }
    }
  }
  for (host::Statement& statement : statements) {
    if (!statement.label.empty()) continue;
    const Signature& agreed = statement.signature;
    statement.label = default_label(agreed.kind, agreed.dtype, agreed.reduction, agreed.count,
                                    span().group.device_ids());
  }
  for (size_t k = 1; k < statements.size(); ++k) {
    error.Update(host::describe_difference(statements[0], statements[k], op.detail_field,
                                           span().num_members(), op.seq));
  }
  return error.ok() ? error : fail(error);
}

Status SpanRun::give_up(shm::DeviceActivity::Kind device, absl::Time called, absl::Time deadline) {
  Status error = interruption();
  error.Update(absl::DeadlineExceededError(
      absl::StrCat(label(), ": ", not_in_time("not done", deadline - called), "; ",
                   span().group.describe_holdup(member(), device))));
  return propose(error, deadline);
}

void SpanRun::end_late(shm::DeviceActivity::Kind, absl::Time called, absl::Time deadline) {
  {
    std::lock_guard<std::mutex> lock(span().mutex);
    if (!news().waited.has_value()) {
      news().waited = {called, deadline};
      news().is_waited_new = true;
      span().nudge(news());
      span().wake_waiters();
    }
  }
  fail_on_devices(deadline - called, ", though all members had arrived");
}

void SpanRun::retire() {
  span().rendezvous().records().leave(op.seq, member());
  span().meetings.set_done(member(), op.seq);
  std::optional<RunNews::Ending> ending;
  {
    std::lock_guard<std::mutex> lock(span().mutex);
    span().running[member()] = nullptr;
    if (span().checker == &news()) span().checker = nullptr;
    ending = std::exchange(news().ending, std::nullopt);
    span().boards.retire(op.seq);
    // The record of the next run may be free now.
    const uint32_t next = host::seq_after(op.seq);
    if (span().boards.find(next) != nullptr) span().postings.post(next, span().boards.at(next));
  }
  if (ending.has_value()) ending->next();
}

}  // namespace tessera::span
