// SPDX-License-Identifier: Apache-2.0
//
// Postings: carries the arrivals of the members of one host to all clients of the other hosts, in
// one letter from host to host.
//
//   host a, members 0 and 1                     host b, members 2 and 3
//   put(0), put(1)
//   take() -> the entries of 0 and 1  ------->  the client of member 2 receives: pass_on()
//                                               the client of member 3: read()
//
// Any client with members on a host may send the entries of that host, as letters to the client of
// the first member on each other host. A client makes a group at its first call there. Until then
// it answers that it has shown the entries to no other client (Letter::Kind::kNotYet), and the
// sender sends them to each of the other clients.
//
// In a group with too many members for the record of a host, put() refuses all entries, and each
// entry is sent to each client of the other hosts.
//
// Invariants:
//   1. an entry is taken once, by a member that then sends it;
//   2. the receiving client posts the entries that it has noted, at the latest when it arrives in
//      the run. It posts nothing for a run whose record has proceeded to a later run.
//
// Refers to the Rendezvous of the members here, which must outlive it. Not thread-safe, except
// put() and take().
#ifndef TESSERA_COLLECTIVES_SPAN_POSTINGS_H_
#define TESSERA_COLLECTIVES_SPAN_POSTINGS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "collectives/host/host_mail.h"
#include "collectives/host/op_record.h"
#include "collectives/host/rendezvous.h"
#include "collectives/span/boards.h"
#include "collectives/span/wants.h"
#include "shm/group_table.h"

namespace tessera::span {

class Postings {
 public:
  // The room that the records of a group need. `here`: its members on this host.
  // `most_input_bytes`: the most bytes of an entry beside its texts.
  static host::Room room_for(size_t num_members, absl::Span<const shm::GroupMember> here,
                             size_t most_input_bytes);

  // `members`: of all hosts, in the order of `places`, which must outlive it.
  Postings(host::Rendezvous& rendezvous, const Places& places,
           absl::Span<const shm::GroupMember> members, int own_client);

  // The client of each other host that receives for its host.
  absl::Span<const int> receivers() const { return receivers_; }
  // Whether this client gets entries from another client of its host.
  bool reads() const { return role_ == Role::kReads; }

  // As HostMail::put(), of a letter with one entry.
  bool put(uint32_t seq, int member, absl::Span<const std::byte> entry) {
    return mail_.put(seq, member, entry);
  }
  // One letter with the entries of the members here that have arrived and whose entries are not
  // taken yet; empty where there is none.
  std::vector<std::byte> take(uint32_t seq);

  // Notes the entries of a letter. `sender`: the client that has sent it to this one; nothing for
  // posted entries.
  void note(absl::Span<const std::byte> letter, std::optional<int> sender, Board& board) const;
  // Posts a letter for the other clients of this host, now or when the record is free for the run.
  void pass_on(uint32_t seq, absl::Span<const std::byte> letter, Board& board);
  // Posts the entries that have waited for the record.
  void post(uint32_t seq, Board& board);

  // Notes the entries that were posted since the last call. Returns whether there were any.
  bool read(uint32_t seq, Board& board) const;
  // Whether read() would find entries for a client that has read so many bytes. Thread-safe.
  bool has_more(uint32_t seq, size_t num_read) const {
    return !mail_.posted(seq, num_read).empty();
  }

 private:
  // kAlone: no other client of this host has a member, or the records have no room.
  enum class Role { kAlone, kPosts, kReads };

  host::Rendezvous& rendezvous_;
  const Places& places_;
  host::HostMail mail_;
  std::vector<int> receivers_;
  Role role_ = Role::kAlone;
};

}  // namespace tessera::span

#endif  // TESSERA_COLLECTIVES_SPAN_POSTINGS_H_
