// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/rendezvous_texts.h"

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
#include "collectives/host/last_seen.h"
#include "shm/activity.h"

namespace tessera::host {
namespace {

absl::Span<const int32_t> ids_of(shm::GroupBlock* block) {
  return {shm::device_ids(block), block->num_members};
}

// A text that another process has written: it may be overwritten while it is read.
std::string read_text(const char* text, size_t size) { return {text, strnlen(text, size)}; }

std::string label_of(const Signature& signature, absl::Span<const int32_t> device_ids) {
  return default_label(signature.kind, signature.dtype, signature.reduction, signature.count,
                       device_ids);
}

Status describe_missing(const GroupRecords& group, const MemberOp& op,
                        const std::vector<bool>& arrived, bool is_open) {
  const absl::Duration waited =
      op.deadline == absl::InfiniteFuture() ? steady_now() - op.start : op.deadline - op.start;
  return host::describe_missing(
      {label_of(group, op), group.members(), arrived, is_open, waited,
       record_layout(*group.block()).verdict_bytes},
      [&](int client) { return group.link().members()[client].to_string(); },
      [&](const shm::GroupMember& member) {
        return describe_last_seen(last_seen(group.link(), member.client_id, member.ordinal));
      });
}

}  // namespace

Status describe_missing(const GroupRecords& group, const MemberOp& op, const State& before) {
  return describe_missing(group, op, group.arrivals(op.seq, before), before.phase == Phase::kOpen);
}

Status describe_missing(const GroupRecords& group, const MemberOp& op) {
  return describe_missing(group, op, group.load(op.seq));
}

Status describe_behind(const GroupRecords& group, const MemberOp& op) {
  const uint32_t before = seq_before(op.seq, group.num_records());
  std::vector<bool> has_passed(group.size());
  for (int m = 0; m < group.size(); ++m) {
    has_passed[m] = group.has_left(before, m);
  }
  return describe_missing(group, op, has_passed, /*is_open=*/true);
}

// If a member has not arrived (check_conflicts()), the operation may time out and its record be
// reused during this search, whose result is wrong then. The result becomes the verdict only by a
// compare-and-swap from the state in which the operation is still open, and a record is not reused
// before that state has changed.
Status find_mismatch(const GroupRecords& group, const MemberOp& op) {
  // The first member that has arrived is compared with the others in order, so that all members
  // that see the same arrivals name the same two.
  int first = 0;
  while (first < op.member && group.is_missing(op.seq, first)) ++first;
  const MemberEntry& a = group.entry(op.seq, first);
  for (int m = first + 1; m < group.size(); ++m) {
    const MemberEntry& b = group.entry(op.seq, m);
    if (b.seq.load(std::memory_order_acquire) != op.seq) continue;
    shm::step();  // a member may be held up here while the record is reused
    if (a.signature == b.signature) continue;
    return describe_difference(statement_of(group, first, a), statement_of(group, m, b),
                               op.detail_field, group.size(), op.seq);
  }
  return absl::OkStatus();
}

Statement statement_of(const GroupRecords& group, int member, const MemberEntry& entry) {
  const shm::GroupMember& device = group.members()[member];
  return {absl::StrCat(group.link().members()[device.client_id].to_string(), " device ",
                       device.device_id),
          entry.signature, entry.part_count, read_text(entry.detail, kDetailBytes),
          label_of(group, entry)};
}

std::string label_of(const GroupRecords& group, const MemberOp& op) {
  const bool has_label = op.label != nullptr && !op.label->empty();
  return has_label ? op.label->to_string() : label_of(op.signature, ids_of(group.block()));
}

std::string label_of(const GroupRecords& group, const MemberEntry& entry) {
  if (entry.label_size != 0) return read_text(entry.label, shm::kLabelBytes);
  return label_of(entry.signature, ids_of(group.block()));
}

std::string name_of(const GroupRecords& group, uint32_t seq, const MemberOp* op) {
  const std::string number = absl::StrCat("operation ", seq, " of the group");
  if (op != nullptr) return absl::StrCat(label_of(group, *op), " (", number, ")");
  return absl::StrCat(number, " of devices ", absl::StrJoin(ids_of(group.block()), ", "));
}

}  // namespace tessera::host
