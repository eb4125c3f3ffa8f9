// SPDX-License-Identifier: Apache-2.0
#include "collectives/span/boards.h"

#include <algorithm>
#include <utility>

#include "collectives/host/op_record.h"

namespace tessera::span {
namespace {

// No member is late by more runs than this. Far below half of all numbers.
constexpr uint32_t kMostBehind = uint32_t{1} << 20;

}  // namespace

void Board::note_call(const Signature& other) {
  if (!call.has_value()) call = other;
  has_differences |= *call != other;
}

void Board::note_entry(int member, Entry entry) {
  if (entries.count(member) > 0) return;
  note_call(entry.statement.signature);
  has_errors |= !entry.error.ok();
  entries.emplace(member, std::move(entry));
}

bool Board::drop_entries_of(int sender) {
  std::map<int, Entry> kept = std::exchange(entries, {});
  const size_t num_before = kept.size();
  call.reset();
  has_differences = has_errors = false;
  for (auto& [member, entry] : kept) {
    if (entry.sender != sender) note_entry(member, std::move(entry));
  }
  return entries.size() < num_before;
}

const Board* Boards::find(uint32_t seq) const {
  const auto it = boards_.find(seq);
  return it == boards_.end() ? nullptr : &it->second;
}

void Boards::for_each(absl::FunctionRef<void(Board&)> use) {
  for (auto& [_, board] : boards_) use(board);
}

bool Boards::is_over(uint32_t seq) const {
  return last_over_ != 0 && !host::is_later(seq, last_over_);
}

void Boards::retire(uint32_t seq) {
  if (++boards_[seq].num_retired < num_members_) return;
  boards_.erase(seq);
  if (!is_over(seq)) last_over_ = seq;
  while (!failures_.empty() && host::is_later(seq, failures_.front().seq) &&
         seq - failures_.front().seq > kMostBehind) {
    failures_.pop_front();
  }
}

void Boards::keep_failure(uint32_t seq, const Signature& call, const Status& verdict) {
  at(seq).verdict = verdict;
  if (find_failure(seq) != nullptr) return;
  failures_.push_back({seq, call, verdict});
  if (failures_.size() > kMostFailed) failures_.pop_front();
}

const Boards::Failed* Boards::find_failure(uint32_t seq) const {
  const auto it = std::find_if(failures_.begin(), failures_.end(),
                               [seq](const Failed& failed) { return failed.seq == seq; });
  return it == failures_.end() ? nullptr : &*it;
}

}  // namespace tessera::span
