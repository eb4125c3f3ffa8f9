// SPDX-License-Identifier: Apache-2.0
//
// PacketConnections: Connections over a Carrier. Cuts messages into packets, and matches the
// packets that arrive with receives.
//
//   message of 600 KiB, tag 3:   [head | 256 KiB] [head | 256 KiB] [head | 88 KiB]
//   head: the receiver's incarnation, the sender, the connection, tag, size of the message
//
// Each byte is copied into a packet and out of it. So no library ever owns memory of an operation,
// and a cut ends all operations at once, whatever packets the library still moves.
//
// Invariants:
//   1. The messages of a client follow each other packet by packet: at most one is unfinished.
//   2. A packet of another connection than the present one, or of another incarnation of this
//      client, is dropped. The number of a connection is accepted from the offer on, because a peer
//      can send on it only after the offer.
//   3. close() sends a last packet that says so; the peer then closes too.
//   4. An operation is in exactly one list of its peer: sends, receives of a tag, or filling.
//
// Used by one thread at a time, as Connections.
#ifndef TESSERA_TRANSPORT_PACKET_CONNECTIONS_H_
#define TESSERA_TRANSPORT_PACKET_CONNECTIONS_H_

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "job/coordinator/coordinator.h"
#include "transport/carrier.h"
#include "transport/connections.h"
#include "transport/engine.h"

namespace tessera::transport {

class PacketConnections : public Connections, private Carrier::Sink {
 public:
  // `site` must outlive it.
  PacketConnections(const Coordinator& coordinator, std::unique_ptr<Carrier> carrier, Site& site);

  StatusOr<std::string> offer(int client, uint64_t number) override;
  Status open(int client, const Address& peer) override;
  void start(Operation::List& from) override;
  void close(int client, const Status& reason) override;
  void end() override { carrier_->end(); }
  void abandon() override;
  bool progress() override;
  bool arm() override { return true; }
  void append_descriptors(std::vector<pollfd>& descriptors) const override {
    carrier_->append_descriptors(descriptors);
  }
  absl::Duration longest_sleep() const override { return carrier_->longest_sleep(); }

 private:
  // A message that arrived before its receive, or a part of it.
  struct Stored {
    size_t size = 0;
    std::vector<std::byte> bytes;
  };
  // The unfinished message of a peer. Without target and store its bytes are dropped.
  struct Incoming {
    Tag tag = 0;
    size_t size = 0;
    size_t num_arrived = 0;
    Operation* target = nullptr;
    Stored* store = nullptr;
  };
  struct Peer {
    int client = 0;
    uint64_t number = 0;  // of the connection, from its offer to its end; else 0
    bool is_open = false;
    std::string place;  // the peer's own words for its address
    Operation::List sends;
    std::map<Tag, Operation::List> receives;
    Operation::List filling;  // of `incoming`
    std::map<Tag, std::list<Stored>> stored;
    std::optional<Incoming> incoming;
  };
  struct Head;

  Peer& peer_of(int client);
  std::string name_of(int client) const;
  Head head_of(const Peer& peer) const;

  void start_receive(Peer& peer, Operation::List& from);
  // Sends packets while there is room. Returns whether any was sent.
  bool pump(Peer& peer);
  void begin(Peer& peer, const Head& head);
  void take(Peer& peer, absl::Span<const std::byte> bytes);
  // Removes the operation at the front of the list, and ends it.
  static void finish(Operation::List& list, const Status& status);

  void arrived(const Packet& packet) override;
  void broken(int client, const Status& reason) override;

  const Coordinator& coordinator_;
  const std::unique_ptr<Carrier> carrier_;
  Site& site_;
  std::map<int, Peer> peers_;
  std::set<int> sending_;  // clients whose `sends` is not empty
};

}  // namespace tessera::transport

#endif  // TESSERA_TRANSPORT_PACKET_CONNECTIONS_H_
