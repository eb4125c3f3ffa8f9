// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/op_record.h"

#include <cstring>

namespace tessera::host {

RecordLayout RecordLayout::create(uint64_t num_members, uint32_t num_records, const Room& room) {
  const bool is_small = room.records == Records::kSmall;
  RecordLayout layout = {};
  layout.num_records = num_records;
  layout.verdict_bytes = is_small ? kSmallVerdictBytes : kVerdictBytes;
  layout.entries_offset =
      static_cast<uint32_t>(shm::align64(offsetof(OpRecord, verdict) + layout.verdict_bytes));
  layout.entry_stride = is_small ? offsetof(MemberEntry, inlined) : sizeof(MemberEntry);
  layout.outboxes_offset = shm::align64(layout.entries_offset + num_members * layout.entry_stride);
  if (room.outbox_bytes > 0) {
    layout.outbox_stride = static_cast<uint32_t>(shm::align64(sizeof(Outbox) + room.outbox_bytes));
  }
  layout.bulletin_offset = layout.outboxes_offset + num_members * layout.outbox_stride;
  layout.bulletin_bytes = room.bulletin_bytes;
  layout.record_stride = layout.bulletin_offset;
  if (room.bulletin_bytes > 0) {
    layout.record_stride += shm::align64(sizeof(Bulletin) + room.bulletin_bytes);
  }
  return layout;
}

// The texts and inputs in a record are written before they are read: clearing them too would touch
// pages that no operation may ever need.
void RecordLayout::clear(std::byte* first, uint64_t num_members) const {
  for (uint64_t i = 0; i < num_records; ++i) {
    std::byte* const record = first + i * record_stride;
    std::memset(record, 0, offsetof(OpRecord, verdict));
    for (uint64_t m = 0; m < num_members; ++m) {
      std::memset(record + entries_offset + m * entry_stride, 0, offsetof(MemberEntry, detail));
      if (outbox_stride > 0) {
        std::memset(record + outboxes_offset + m * outbox_stride, 0, sizeof(Outbox));
      }
    }
    if (bulletin_bytes > 0) std::memset(record + bulletin_offset, 0, sizeof(Bulletin));
  }
}

}  // namespace tessera::host
