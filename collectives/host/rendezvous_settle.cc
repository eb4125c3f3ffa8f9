// SPDX-License-Identifier: Apache-2.0
//
// Verdicts: how a Rendezvous settles an operation, and how members read and acknowledge that.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/format.h"
#include "base/status.h"
#include "collectives/host/rendezvous.h"
#include "collectives/host/rendezvous_texts.h"

namespace tessera::host {
namespace {

// A settler takes microseconds. A stopped one is waited for up to this limit; by a caller whose
// deadline has passed up to the second one, which a settler needs where its core is taken from it.
// Its loss is checked at this interval.
constexpr absl::Duration kSettleLimit = absl::Seconds(20);
constexpr absl::Duration kLateSettleLimit = absl::Seconds(1);
constexpr absl::Duration kSettlerCheckInterval = absl::Milliseconds(5);

}  // namespace

bool Rendezvous::is_being_settled(uint32_t seq) const {
  return record(seq).is_being_settled(seq, [this](uint32_t settler) {
    const int client = static_cast<int>(settler) - 1;
    if (client < 0 || client >= link_->num_clients()) return true;
    return client != link_->client_id() && link_->is_dead(client);
  });
}

absl::Duration Rendezvous::wait_settled(uint32_t seq, const Op* op) {
  if (!is_being_settled(seq)) return absl::ZeroDuration();
  const absl::Time start = steady_now();
  absl::Time limit = start + kSettleLimit;
  if (op != nullptr) limit = std::min(limit, std::max(start, op->deadline) + kLateSettleLimit);
  bool was_given_up = false;
  while (is_being_settled(seq)) {
    const absl::Time now = steady_now();
    if (now >= limit) return limit - start;
    wait_while(seq, now + kSettlerCheckInterval, nullptr,
               [](const State& state) { return state.phase == Phase::kSettling; });
    if (op == nullptr || op->is_given_up == nullptr || was_given_up) continue;
    was_given_up = op->is_given_up->load(std::memory_order_relaxed);
    if (was_given_up) limit = std::min(limit, now + kLateSettleLimit);
  }
  return absl::ZeroDuration();
}

Status Rendezvous::verdict(uint32_t seq, const Op* op) {
  const absl::Duration waited = wait_settled(seq, op);
  const State state = load(seq);
  if (state.seq != seq || !state.is_settled()) {
    return absl::UnavailableError(
        absl::StrCat(name_of(*this, seq, op), " was given up without this client"));
  }
  const auto settler = [&] {
    const int client = static_cast<int>(state.settler) - 1;
    const bool is_known = client >= 0 && client < link_->num_clients();
    return is_known ? link_->member(client).to_string() : std::string("a client");
  };
  if (state.phase == Phase::kOrphaned) {
    return absl::UnavailableError(absl::StrCat(name_of(*this, seq, op), " failed, and ", settler(),
                                               " was lost before it could say why"));
  }
  if (state.phase == Phase::kSettling) {
    return absl::DeadlineExceededError(absl::StrCat(name_of(*this, seq, op), " failed, and ",
                                                    settler(), " has not said why in ",
                                                    format_duration(waited)));
  }
  const Status read = record(seq).read_verdict(record_layout(*block_).verdict_bytes);
  // After a timeout the record does not wait for this member, and may be reused meanwhile.
  if (load(seq).seq != seq) return verdict(seq, op);
  return read;
}

Status Rendezvous::settle(uint32_t seq, VerdictKind kind, From from, const Status& error,
                          const Op* op) {
  return settle_with(seq, kind, from, op, [&](const State&) { return error; });
}

void Rendezvous::settle_at_once(uint32_t seq, From from, const Status& error) {
  try_settle(seq, VerdictKind::kError, from, [&](const State&) { return error; });
}

Status Rendezvous::settle_with(uint32_t seq, VerdictKind kind, From from, const Op* op,
                               absl::FunctionRef<Status(const State& before)> make_error) {
  const std::optional<Status> settled = try_settle(seq, kind, from, make_error);
  return settled.has_value() ? *settled : verdict(seq, op);
}

// Two steps. First the claim decides which settler wins, and freezes the arrivals. Then the winner
// writes the text. A winner that dies in between leaves the record to is_being_settled().
std::optional<Status> Rendezvous::try_settle(
    uint32_t seq, VerdictKind kind, From from,
    absl::FunctionRef<Status(const State& before)> make_error) {
  const Record own = record(seq);
  const auto absent = [&] {
    uint32_t bits = 0;
    for (int m = 0; m < size(); ++m) bits |= is_missing(seq, m) ? 1u << m : 0;
    return bits;
  };
  const Record::Claim claim = own.claim(
      seq, kind, from, link_->client_id(), [&](uint32_t met) { return all_left(met, seq); },
      absent);
  if (claim.result == Record::Claim::kNotFree) return make_error(claim.before);
  if (claim.result == Record::Claim::kGoesOn) return absl::OkStatus();
  if (claim.result == Record::Claim::kSettled) return std::nullopt;
  // From here on no member arrives, and the entries do not change until the verdict is read.
  const Status error = make_error(claim.before);
  std::string message(error.message());
  const size_t most = record_layout(*block_).verdict_bytes;
  if (message.size() > most) message.replace(most - 3, message.npos, "...");
  const Status verdict(error.code(), message);
  // Not read back from the record, which may be reused at once after a timeout.
  if (!own.settle(seq, verdict)) return std::nullopt;
  return verdict;
}

void Rendezvous::settle_arrived(int member, uint32_t done, From from, const Status& error) {
  for (uint32_t i = 0; i <= last_record_; ++i) {
    // The state first, then the entry: the entry is what the member wrote before it arrived.
    const State state = load(i);
    const MemberEntry& own = entry(i, member);
    const bool has_arrived = own.seq.load(std::memory_order_acquire) == state.seq;
    if (state.is_unused() || !has_arrived || !is_later(state.seq, done)) continue;
    try_settle(state.seq, VerdictKind::kError, from,
               [&](const State&) { return with_context(error, label_of(*this, own)); });
  }
}

Status Rendezvous::settle_timed_out(const Op& op, From from) {
  return settle_with(op.seq, VerdictKind::kTimedOut, from, &op,
                     [&](const State& before) { return describe_missing(*this, op, before); });
}

void Rendezvous::acknowledge(uint32_t seq, int member) { record(seq).acknowledge(seq, member); }

bool Rendezvous::failed_on_the_move(uint32_t seq) const {
  const State state = load(seq);
  if (state.seq != seq || !state.is_settled()) return true;
  return state.after_arrival && state.kind != VerdictKind::kMismatch;
}

Status Rendezvous::settle_mismatch(const Op& op) {
  return settle(op.seq, VerdictKind::kMismatch, From::kRunning, find_mismatch(*this, op), &op);
}

}  // namespace tessera::host
