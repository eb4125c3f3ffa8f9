// SPDX-License-Identifier: Apache-2.0
#include "transport/packet_connections.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera::transport {

struct PacketConnections::Head {
  uint64_t receiver_incarnation;
  uint64_t connection;
  uint64_t tag;
  uint64_t size;  // of the message
  uint32_t sender;
  uint32_t is_cut;  // 1 for the last packet of a connection
};

PacketConnections::PacketConnections(const Coordinator& coordinator,
                                     std::unique_ptr<Carrier> carrier, Site& site)
    : coordinator_(coordinator), carrier_(std::move(carrier)), site_(site) {}

PacketConnections::Peer& PacketConnections::peer_of(int client) {
  const auto [it, added] = peers_.try_emplace(client);
  if (added) it->second.client = client;
  return it->second;
}

std::string PacketConnections::name_of(int client) const {
  return coordinator_.members()[client].to_string();
}

// --- Connecting. Neither end waits for a greeting: both have read the offer of the other.

StatusOr<std::string> PacketConnections::offer(int client, uint64_t number) {
  TESSERA_ASSIGN_OR_RETURN(std::string text, carrier_->offer(client));
  peer_of(client).number = number;
  return text;
}

Status PacketConnections::open(int client, const Address& peer_address) {
  const Status opened = carrier_->open(client, peer_address);
  if (!opened.ok()) return with_context(opened, absl::StrCat("connecting to ", name_of(client)));
  Peer& peer = peer_of(client);
  peer.place = peer_address.place;
  peer.is_open = true;
  site_.opened(client);
  return absl::OkStatus();
}

// --- Sends.

void PacketConnections::start(Operation::List& from) {
  Operation& operation = from.front();
  Peer& peer = peer_of(operation.client);
  if (operation.direction == Direction::kReceive) return start_receive(peer, from);
  peer.sends.splice(peer.sends.end(), from, from.begin());
  sending_.insert(peer.client);
  pump(peer);
}

PacketConnections::Head PacketConnections::head_of(const Peer& peer) const {
  return {.receiver_incarnation = coordinator_.members()[peer.client].incarnation,
          .connection = peer.number,
          .tag = 0,
          .size = 0,
          .sender = static_cast<uint32_t>(coordinator_.client_id()),
          .is_cut = 0};
}

bool PacketConnections::pump(Peer& peer) {
  bool any = false;
  while (!peer.sends.empty() && carrier_->has_room(peer.client)) {
    Operation& operation = peer.sends.front();
    Head head = head_of(peer);
    head.tag = operation.tag;
    head.size = operation.num_bytes;
    const size_t left = operation.num_bytes - operation.num_moved;
    const size_t size = std::min(left, kMostPacketBytes - sizeof head);
    Packet packet = Packet::of_size(sizeof head + size);
    std::memcpy(packet.bytes.get(), &head, sizeof head);
    if (size > 0) {
      std::memcpy(packet.bytes.get() + sizeof head, operation.bytes + operation.num_moved, size);
    }
    operation.num_moved += size;
    carrier_->send(peer.client, std::move(packet));
    any = true;
    if (size == left) finish(peer.sends, absl::OkStatus());
  }
  if (peer.sends.empty()) sending_.erase(peer.client);
  return any;
}

// --- Receives.

// The first message that is stored under the tag is its own; else it waits for the next.
void PacketConnections::start_receive(Peer& peer, Operation::List& from) {
  Operation& operation = from.front();
  const auto found = peer.stored.find(operation.tag);
  if (found == peer.stored.end()) {
    Operation::List& receives = peer.receives[operation.tag];
    receives.splice(receives.end(), from, from.begin());
    return;
  }
  Stored& stored = found->second.front();
  const bool fits = stored.size == operation.num_bytes;
  const bool is_unfinished = peer.incoming.has_value() && peer.incoming->store == &stored;
  const Status status =
      fits ? absl::OkStatus()
           : wrong_size(name_of(peer.client), operation, absl::StrCat(stored.size));
  if (fits && !stored.bytes.empty()) {
    std::memcpy(operation.bytes, stored.bytes.data(), stored.bytes.size());
  }
  found->second.pop_front();
  if (found->second.empty()) peer.stored.erase(found);
  if (!is_unfinished) return finish(from, status);
  peer.incoming->store = nullptr;
  if (!fits) return finish(from, status);
  peer.filling.splice(peer.filling.end(), from, from.begin());
  peer.incoming->target = &peer.filling.back();
}

void PacketConnections::arrived(const Packet& packet) {
  Head head;
  if (packet.num_bytes < sizeof head) return;
  std::memcpy(&head, packet.bytes.get(), sizeof head);
  const MemberInfo& self = coordinator_.members()[coordinator_.client_id()];
  if (head.receiver_incarnation != self.incarnation) return;
  if (head.sender >= static_cast<uint32_t>(coordinator_.num_clients())) return;
  Peer& peer = peer_of(static_cast<int>(head.sender));
  if (head.connection != peer.number) return;
  if (head.is_cut == 1) {
    return site_.broken(peer.client, absl::UnavailableError(absl::StrCat(
                                         "the connection to ", name_of(peer.client),
                                         peer.place.empty() ? "" : absl::StrCat(" at ", peer.place),
                                         " was closed by its other end")));
  }
  if (!peer.incoming.has_value()) begin(peer, head);
  // Bytes after the end of the message are the carrier's.
  take(peer, {packet.bytes.get() + sizeof head,
              std::min(packet.num_bytes - sizeof head,
                       peer.incoming->size - peer.incoming->num_arrived)});
}

// Finds where the bytes of a message go.
void PacketConnections::begin(Peer& peer, const Head& head) {
  peer.incoming = Incoming{
      .tag = head.tag, .size = head.size, .num_arrived = 0, .target = nullptr, .store = nullptr};
  Incoming& incoming = *peer.incoming;
  const auto found = peer.receives.find(head.tag);
  if (found == peer.receives.end()) {
    Stored& stored = peer.stored[head.tag].emplace_back();
    stored.size = head.size;
    incoming.store = &stored;
    return;
  }
  Operation::List receive;
  receive.splice(receive.begin(), found->second, found->second.begin());
  if (found->second.empty()) peer.receives.erase(found);
  if (receive.front().num_bytes != head.size) {
    return finish(receive,
                  wrong_size(name_of(peer.client), receive.front(), absl::StrCat(head.size)));
  }
  peer.filling.splice(peer.filling.begin(), receive);
  incoming.target = &peer.filling.front();
}

void PacketConnections::take(Peer& peer, absl::Span<const std::byte> bytes) {
  Incoming& incoming = *peer.incoming;
  if (incoming.target != nullptr && !bytes.empty()) {
    std::memcpy(incoming.target->bytes + incoming.num_arrived, bytes.data(), bytes.size());
  } else if (incoming.store != nullptr) {
    incoming.store->bytes.insert(incoming.store->bytes.end(), bytes.begin(), bytes.end());
  }
  incoming.num_arrived += bytes.size();
  if (incoming.num_arrived < incoming.size) return;
  peer.incoming.reset();
  if (!peer.filling.empty()) finish(peer.filling, absl::OkStatus());
}

// --- Ends.

void PacketConnections::finish(Operation::List& list, const Status& status) {
  Operation::List ended;  // destroyed at the end: `done` first, then the keeper
  ended.splice(ended.begin(), list, list.begin());
  ended.front().done(status);
}

void PacketConnections::broken(int client, const Status& reason) {
  site_.broken(client, with_context(reason, absl::StrCat("the connection to ", name_of(client),
                                                         " is broken")));
}

void PacketConnections::close(int client, const Status& reason) {
  Peer& peer = peer_of(client);
  if (std::exchange(peer.is_open, false)) {
    Head head = head_of(peer);
    head.is_cut = 1;
    Packet packet = Packet::of_size(sizeof head);
    std::memcpy(packet.bytes.get(), &head, sizeof head);
    carrier_->send(client, std::move(packet));
    carrier_->close(client);
  }
  peer.number = 0;
  peer.incoming.reset();
  peer.stored.clear();
  sending_.erase(client);
  Operation::List ended = std::move(peer.sends);
  ended.splice(ended.end(), peer.filling);
  for (auto& [tag, receives] : std::exchange(peer.receives, {})) {
    ended.splice(ended.end(), receives);
  }
  while (!ended.empty()) finish(ended, reason);
}

void PacketConnections::abandon() {
  // Operations and keepers are the parent's as well: releasing them could unmap shared memory.
  auto* const leaked = new std::map<int, Peer>(std::move(peers_));
  (void)leaked;
  carrier_->abandon();
}

bool PacketConnections::progress() {
  bool any = carrier_->progress(*this);
  for (auto it = sending_.begin(); it != sending_.end();) {
    Peer& peer = peers_.at(*it++);  // pump() may remove it from the set
    any = pump(peer) || any;
  }
  return any;
}

}  // namespace tessera::transport
