// SPDX-License-Identifier: Apache-2.0
#include "collectives/span/postings.h"

#include <optional>
#include <utility>

#include "collectives/span/arrivals.h"
#include "collectives/span/letter_body.h"

namespace tessera::span {
namespace {

// Signature, label and detail: an entry without counts and without an error fits.
constexpr size_t kTextBytes = 512;
// The most room in one record: all groups of a host that one client leads share its control region.
constexpr size_t kMostRoomBytes = size_t{9} << 18;

}  // namespace

host::Room Postings::room_for(size_t num_members, absl::Span<const shm::GroupMember> here,
                              size_t most_input_bytes) {
  static_assert(kTextBytes >= shm::kLabelBytes + host::kDetailBytes + 2 * sizeof(Signature));
  const size_t entry_bytes = shm::align64(kTextBytes + most_input_bytes);
  // The condition is equal on all hosts.
  if (num_members * entry_bytes > kMostRoomBytes) return {};
  host::Room room = {.outbox_bytes = static_cast<uint32_t>(entry_bytes)};
  if (are_of_several_clients(here)) {
    room.bulletin_bytes = static_cast<uint32_t>((num_members - here.size()) * entry_bytes);
  }
  return room;
}

Postings::Postings(host::Rendezvous& rendezvous, const Places& places,
                   absl::Span<const shm::GroupMember> members, int own_client)
    : rendezvous_(rendezvous), places_(places), mail_(rendezvous.records()) {
  for (int host = 0; host < static_cast<int>(places.by_host().size()); ++host) {
    const int first = members[places.by_host()[host][0]].client_id;
    if (host != places.here()) {
      receivers_.push_back(first);
    } else if (mail_.has_bulletin()) {
      role_ = first == own_client ? Role::kPosts : Role::kReads;
    }
  }
}

std::vector<std::byte> Postings::take(uint32_t seq) { return join_arrivals(mail_.take(seq)); }

void Postings::note(absl::Span<const std::byte> letter, std::optional<int> sender,
                    Board& board) const {
  read_arrivals(letter, [&](int member, Board::Entry entry) {
    if (member < 0 || member >= places_.num_members() || places_.is_here(member)) return;
    entry.sender = sender;
    board.note_entry(member, std::move(entry));
  });
}

void Postings::pass_on(uint32_t seq, absl::Span<const std::byte> letter, Board& board) {
  if (role_ != Role::kPosts) return;
  append(letter.data(), letter.size(), board.to_post);
  post(seq, board);
}

void Postings::post(uint32_t seq, Board& board) {
  if (board.to_post.empty() || !rendezvous_.records().is_next(seq)) return;
  // There is room for one entry of each member. A run that is over has no reader.
  mail_.post(seq, board.to_post);
  board.to_post.clear();
}

bool Postings::read(uint32_t seq, Board& board) const {
  if (!reads()) return false;
  const absl::Span<const std::byte> letters = mail_.posted(seq, board.num_read);
  board.num_read += letters.size();
  note(letters, /*sender=*/std::nullopt, board);
  return !letters.empty();
}

}  // namespace tessera::span
