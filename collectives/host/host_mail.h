// SPDX-License-Identifier: Apache-2.0
//
// HostMail: letters of a group over several hosts, in the records of its members on one host. One
// client sends one letter for all members, and one client receives for all.
//
//   on the host that sends                         on the host that receives
//   put(7, 0, a)   member 0, before it arrives
//   put(7, 1, b)   member 1, before it arrives
//   take(7) -> a, b   by whichever member is last
//                     ----- one letter ab -----> the client that gets the letters of other hosts:
//                                                post(7, ab)
//                                                posted(7, 0) -> ab   its other clients
//
// Invariants:
//   1. a letter that a member puts is taken once, by one member of the host, when the member is
//      counted as arrived. Letters of an operation with a verdict are not taken;
//   2. one client posts, one thread at a time. Posted bytes do not change while the record
//      describes the operation, and bytes of an earlier operation are not posted any more.
//
// A view of GroupRecords, which must outlive it. Thread-safe, except post().
#ifndef TESSERA_COLLECTIVES_HOST_HOST_MAIL_H_
#define TESSERA_COLLECTIVES_HOST_HOST_MAIL_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "collectives/host/group_records.h"
#include "collectives/host/op_record.h"

namespace tessera::host {

class HostMail {
 public:
  explicit HostMail(const GroupRecords& group);

  // Keeps a letter of the member for take(). False where there is no room for it. Must be called
  // after the record was seen free for `seq`.
  bool put(uint32_t seq, int member, absl::Span<const std::byte> letter);
  // The letters of the members that have arrived, by member, except those taken before. None where
  // the operation has a verdict.
  std::vector<std::vector<std::byte>> take(uint32_t seq);

  // Whether there is room to post: the group has members of several clients here.
  bool has_bulletin() const { return bulletin_bytes_ > 0; }
  // Appends bytes of other hosts to the operation's bulletin, and wakes the members that wait for
  // it. False where there is no room, or the record has a later operation. Requires that the record
  // is next for `seq`, or has it.
  bool post(uint32_t seq, absl::Span<const std::byte> letter);
  // The posted bytes, from a byte on. Empty where nothing was posted. To be read while this client
  // has a member in the operation.
  absl::Span<const std::byte> posted(uint32_t seq, size_t from) const;

 private:
  std::byte* record(uint32_t seq) const {
    return reinterpret_cast<std::byte*>(&group_.record(seq).memory());
  }
  Outbox& outbox(uint32_t seq, int member) const {
    return *reinterpret_cast<Outbox*>(record(seq) + outboxes_offset_ + member * outbox_stride_);
  }
  Bulletin& bulletin(uint32_t seq) const {
    return *reinterpret_cast<Bulletin*>(record(seq) + bulletin_offset_);
  }
  // How many bytes are posted of this operation.
  size_t num_posted(uint32_t seq) const;

  const GroupRecords& group_;
  // Copies of the block's constant fields.
  uint64_t outboxes_offset_;
  uint64_t outbox_stride_;
  uint64_t bulletin_offset_;
  size_t bulletin_bytes_;
};

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_HOST_MAIL_H_
