// SPDX-License-Identifier: Apache-2.0
//
// Carrier: the functions that PacketConnections needs of a library that moves bytes: packets of
// bounded size between two clients, in order.
//
//   offer(4) -> "7 rank 7 on host-b"      the coordinator carries it to client 4
//   open(4, offer of client 4)            then send(4, packet) while has_room(4)
//   progress(sink)                        sink.arrived(packet), sink.broken(client, reason)
//
// Invariants:
//   1. Packets of one client to another arrive whole and in the order in which they were sent, or
//      not at all: no packet is lost before a packet that arrives. An arrived packet may have bytes
//      of any value behind the bytes that were sent, up to kMostPacketBytes in all.
//   2. After close() a packet may still arrive. Its reader recognizes it as old by its text.
//   3. Packets that the library has not accepted or filled belong to the carrier, also after
//      close().
//
// Used by one thread at a time, as Connections.
#ifndef TESSERA_TRANSPORT_CARRIER_H_
#define TESSERA_TRANSPORT_CARRIER_H_

#include <poll.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "transport/connections.h"

namespace tessera::transport {

// The most bytes of a packet.
inline constexpr size_t kMostPacketBytes = 256 * 1024 + 64;

struct Packet {
  std::unique_ptr<std::byte[]> bytes;
  size_t num_bytes = 0;

  static Packet of_size(size_t num_bytes) {
    return {std::unique_ptr<std::byte[]>(new std::byte[num_bytes]), num_bytes};
  }
};

class Carrier {
 public:
  // Receives packets and the ends of connections. Its functions may call close().
  class Sink {
   public:
    virtual void arrived(const Packet& packet) = 0;
    // The library can move nothing more to or from the client, for this reason. The sink closes the
    // connection and names the reason.
    virtual void broken(int client, const Status& reason) = 0;

   protected:
    ~Sink() = default;
  };

  virtual ~Carrier() = default;

  // The text of the Address for open() of that client. Constant until close().
  virtual StatusOr<std::string> offer(int client) = 0;
  virtual Status open(int client, const Address& peer) = 0;
  // Whether a packet may be sent now.
  virtual bool has_room(int client) const = 0;
  // Also without room, for the last packet before close().
  virtual void send(int client, Packet packet) = 0;
  virtual void close(int client) = 0;
  // Closes all connections, and gives packets that were sent a last chance to leave.
  virtual void end() = 0;
  // In a forked child: nothing of the parent's library is used any more.
  virtual void abandon() = 0;

  // Returns whether there was anything to do.
  virtual bool progress(Sink& sink) = 0;
  // As in Connections.
  virtual void append_descriptors(std::vector<pollfd>&) const {}
  virtual absl::Duration longest_sleep() const { return absl::InfiniteDuration(); }
};

}  // namespace tessera::transport

#endif  // TESSERA_TRANSPORT_CARRIER_H_
