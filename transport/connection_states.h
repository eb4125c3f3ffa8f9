// SPDX-License-Identifier: Apache-2.0
//
// ConnectionStates: the state of the connection to each client, over the Connections of a library.
//
//   none --offer()--> offered --meet()--> meeting --both ends are there--> connected
//     ^                  |                   |                                |
//     +------------------+-------------------+---- cut(), or found broken ----+
//
// An offer is an address and the number of the connection. Each end makes an offer for number n and
// reads the peer's offer for number n; the coordinator carries them.
//
// Invariants:
//   1. The number grows when a connection ends, so that both ends skip a number that one end has
//      used. A cut of a client that is only offered keeps it: the offer stays valid for the peer.
//   2. While a client is not connected its operations end with the first reason of its cut, or with
//      FailedPrecondition where it was not cut since the last offer.
//   3. No function of the library is called after end().
//
// Used by one thread at a time, as Connections.
#ifndef TESSERA_TRANSPORT_CONNECTION_STATES_H_
#define TESSERA_TRANSPORT_CONNECTION_STATES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "job/coordinator/coordinator.h"
#include "transport/connections.h"
#include "transport/engine.h"

namespace tessera::transport {

// Makes the Connections of a library.
using MakeConnections =
    std::function<std::unique_ptr<Connections>(const Coordinator&, Connections::Site& site)>;

// This client's offer to a client for their next connection.
struct Offer {
  bool is_connected = false;  // then the rest is unset
  uint64_t number = 0;        // of the connection
  uint64_t num_cuts = 0;      // tells meet() of a cut since
  std::string text = {};      // of the Address, for the peer's meet()
};

class ConnectionStates : private Connections::Site {
 public:
  // `lost` is called as Engine::LostListener, from progress() of the library.
  ConnectionStates(const Coordinator& coordinator, const MakeConnections& make,
                   Engine::LostListener lost);

  // For progress and sleep.
  Connections& library() const { return *library_; }

  StatusOr<Offer> offer(int client);
  // Connects by the peer's offer of the same number. `done` is called when the connection is made
  // or has failed; several calls may wait for one connection.
  void meet(int client, const Offer& own, const std::string& peer_text, Engine::Done done);
  // Starts the first operation of `from`, or ends it where the client is not connected.
  void start(Operation::List& from);
  // As Engine::cut().
  void cut(int client, const Status& reason);
  // Cuts all, and ends the library.
  void end(const Status& reason);
  // In a forked child.
  void abandon() { library_->abandon(); }

 private:
  enum class State { kNone, kOffered, kMeeting, kConnected };
  struct Peer {
    State state = State::kNone;
    uint64_t number = 1;  // of the next connection, or the present one
    uint64_t num_cuts = 0;
    Status status;                      // unless connected: how operations end
    std::vector<Engine::Done> waiting;  // in kMeeting
  };

  Peer& peer_of(int client);
  Status not_connected(int client) const;
  void close(int client, Peer& peer, const Status& reason);
  static void finish_meeting(Peer& peer, const Status& result);

  void opened(int client) override;
  void broken(int client, const Status& reason) override;

  const Coordinator& coordinator_;
  const Engine::LostListener lost_;
  std::map<int, Peer> peers_;
  Status end_;  // why everything fails, after end()
  const std::unique_ptr<Connections> library_;
};

}  // namespace tessera::transport

#endif  // TESSERA_TRANSPORT_CONNECTION_STATES_H_
