// SPDX-License-Identifier: Apache-2.0
//
// The messages of a Rendezvous: which members are missing, and in what members differ.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/host/activity.h"
#include "collectives/host/member_texts.h"
#include "collectives/host/rendezvous.h"

namespace tessera::host {
namespace {

absl::Span<const int32_t> ids_of(GroupBlock* block) {
  return {device_ids(block), block->num_members};
}

// A text that another process has written: it may be overwritten while it is read.
std::string read_text(const char* text, size_t size) { return {text, strnlen(text, size)}; }

}  // namespace

std::vector<bool> Rendezvous::arrivals(uint32_t seq, const State& state) const {
  const bool all = state.phase == Phase::kRunning || state.phase == Phase::kMet;
  constexpr int kTries = kStepped ? 1 : 200;
  std::vector<bool> arrived(size(), all);
  // A member writes its place into the entry before it is counted. A member that was held up in
  // between has a place beyond those counted, or the same place as another one: it finds the record
  // settled, and then clears its place.
  for (int tries = 0; !all && tries < kTries; ++tries) {
    for (int m = 0; m < size(); ++m) {
      const MemberEntry& other = entry(seq, m);
      arrived[m] =
          other.seq.load(std::memory_order_acquire) == seq &&
          (state.is_settled() || other.place.load(std::memory_order_relaxed) <= state.arrived);
    }
    if (state.is_settled()) break;
    if (std::count(arrived.begin(), arrived.end(), true) <= static_cast<int>(state.arrived)) break;
    sched_yield();
  }
  return arrived;
}

Status Rendezvous::describe_missing(const Op& op, const State& before) const {
  return describe_missing(op, arrivals(op.seq, before), before.phase == Phase::kOpen);
}

Status Rendezvous::describe_behind(const Op& op) const {
  const uint32_t before = seq_before(op.seq, num_records());
  std::vector<bool> has_passed(size());
  for (int m = 0; m < size(); ++m) {
    has_passed[m] = !is_later(before, progress_[m].left.load(std::memory_order_acquire));
  }
  return describe_missing(op, has_passed, /*is_open=*/true);
}

Status Rendezvous::describe_missing(const Op& op, const std::vector<bool>& arrived,
                                    bool is_open) const {
  const absl::Duration waited =
      op.deadline == absl::InfiniteFuture() ? steady_now() - op.start : op.deadline - op.start;
  return host::describe_missing(
      {label_of(op), members_, arrived, is_open, waited, block_->verdict_bytes},
      [&](int client) { return link_->member(client).to_string(); },
      [&](const GroupMember& member) {
        return last_seen(*link_, member.client_id, member.ordinal).to_string();
      });
}

// Where a member has not arrived (check_conflicts()), the operation may time out and its record be
// reused in the middle of this: then what is found is wrong. It becomes the verdict only by a
// compare-and-swap from the state in which the operation is still open, and a record is not reused
// before that state has changed.
Status Rendezvous::find_mismatch(const Op& op) const {
  // The first member that has arrived is compared with the others in order, so that all members
  // that see the same arrivals name the same two.
  int first = 0;
  while (first < op.member && is_missing(op.seq, first)) ++first;
  const MemberEntry& a = entry(op.seq, first);
  for (int m = first + 1; m < size(); ++m) {
    const MemberEntry& b = entry(op.seq, m);
    if (b.seq.load(std::memory_order_acquire) != op.seq) continue;
    step();  // a member may be held up here while the record is reused
    if (a.signature == b.signature) continue;
    return describe_difference(statement_of(first, a), statement_of(m, b), op.detail_field, size(),
                               op.seq);
  }
  return absl::OkStatus();
}

Statement Rendezvous::statement_of(int member, const MemberEntry& entry) const {
  const GroupMember& device = members_[member];
  return {absl::StrCat(link_->member(device.client_id).to_string(), " device ", device.device_id),
          entry.signature, entry.part_count, read_text(entry.detail, kDetailBytes),
          label_of(entry)};
}

std::string Rendezvous::label_of(const Signature& signature,
                                 absl::Span<const int32_t> device_ids) const {
  return default_label(signature.kind, signature.dtype, signature.reduction, signature.count,
                       device_ids);
}

std::string Rendezvous::label_of(const Op& op) const {
  const bool has_label = op.label != nullptr && !op.label->empty();
  return has_label ? op.label->to_string() : label_of(op.signature, ids_of(block_));
}

std::string Rendezvous::label_of(const MemberEntry& entry) const {
  if (entry.label_size != 0) return read_text(entry.label, kLabelBytes);
  return label_of(entry.signature, ids_of(block_));
}

std::string Rendezvous::name_of(uint32_t seq, const Op* op) const {
  const std::string number = absl::StrCat("operation ", seq, " of the group");
  if (op != nullptr) return absl::StrCat(label_of(*op), " (", number, ")");
  return absl::StrCat(number, " of devices ", absl::StrJoin(ids_of(block_), ", "));
}

ActivitySnapshot Rendezvous::last_seen(const HostLink& link, int client, int ordinal) {
  ActivitySnapshot seen = read_activity(activity_slot(link.control(client), ordinal));
  if (seen.has_label) return seen;
  int32_t own_id = ordinal;
  for (int i = 0; i < client; ++i) own_id += link.member(i).num_local_devices;
  std::vector<int32_t> ids;
  // A torn snapshot may have an invalid offset, which is not followed.
  if (seen.consistent && seen.block_offset != 0) ids = ids_in(link, seen);
  if (seen.consistent && seen.block_offset == 0) ids = {own_id};
  seen.label = default_label(seen.op, seen.dtype, seen.reduction, seen.count, ids);
  return seen;
}

int Rendezvous::client_of(const HostLink& link, int device_id) {
  int client = 0;
  for (int first = 0; client + 1 < link.num_clients(); ++client) {
    first += link.member(client).num_local_devices;
    if (device_id < first) break;
  }
  return client;
}

}  // namespace tessera::host
