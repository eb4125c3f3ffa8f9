// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/verdicts.h"

#include <atomic>
#include <string>

#include "collectives/host/rendezvous_texts.h"

namespace tessera::host {

// Two steps. First the claim decides which settler wins, and freezes the arrivals. Then the winner
// writes the text. A winner that dies in between leaves the record to
// GroupRecords::is_being_settled().
std::optional<Status> try_settle(const GroupRecords& group, uint32_t seq, VerdictKind kind,
                                 Record::From from,
                                 absl::FunctionRef<Status(const State& before)> make_error) {
  const Record own = group.record(seq);
  const auto absent = [&] {
    uint32_t bits = 0;
    for (int m = 0; m < group.size(); ++m) bits |= group.is_missing(seq, m) ? 1u << m : 0;
    return bits;
  };
  const Record::Claim claim = own.claim(
      seq, kind, from, group.link().members().client_id(),
      [&](uint32_t met) { return group.all_left(met, seq); }, absent);
  if (claim.result == Record::Claim::kNotFree) return make_error(claim.before);
  if (claim.result == Record::Claim::kGoesOn) return absl::OkStatus();
  if (claim.result == Record::Claim::kSettled) return std::nullopt;
  // From here on no member arrives, and the entries do not change until the verdict is read.
  const Status error = make_error(claim.before);
  std::string message(error.message());
  const size_t most = record_layout(*group.block()).verdict_bytes;
  if (message.size() > most) message.replace(most - 3, message.npos, "...");
  const Status verdict(error.code(), message);
  // Not read back from the record, which may be reused at once after a timeout.
  if (!own.settle(seq, verdict)) return std::nullopt;
  return verdict;
}

void settle_at_once(const GroupRecords& group, uint32_t seq, Record::From from,
                    const Status& error) {
  try_settle(group, seq, VerdictKind::kError, from, [&](const State&) { return error; });
}

void settle_arrived(const GroupRecords& group, int member, uint32_t done, Record::From from,
                    const Status& error) {
  for (uint32_t i = 0; i < group.num_records(); ++i) {
    // Reads the state first, then the entry: the member wrote the entry before it arrived.
    const State state = group.load(i);
    const MemberEntry& own = group.entry(i, member);
    const bool has_arrived = own.seq.load(std::memory_order_acquire) == state.seq;
    if (state.is_unused() || !has_arrived || !is_later(state.seq, done)) continue;
    try_settle(group, state.seq, VerdictKind::kError, from,
               [&](const State&) { return with_context(error, label_of(group, own)); });
  }
}

}  // namespace tessera::host
