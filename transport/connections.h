// SPDX-License-Identifier: Apache-2.0
//
// Connections: the work of an engine, which is connections, messages, and their ends. Each library
// below implements it; ThreadedEngine (threaded_engine.h) makes an Engine of it.
//
// The states of one client, seen from this one:
//
//   none --offer()--> offered --meet()--> meeting --both ends are there--> connected
//                        ^                   |                                |
//                        +-------------------+---- cut(), or found broken ----+
//
// An offer is an address and the number of the connection. Each end makes an offer for number n and
// reads the peer's offer for number n; the coordinator carries them. An offer stays valid until the
// connection is made.
//
// Used by one thread at a time: the thread that has the engine's work.
#ifndef TESSERA_TRANSPORT_CONNECTIONS_H_
#define TESSERA_TRANSPORT_CONNECTIONS_H_

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "transport/engine.h"

namespace tessera::network {

class Connections;

enum class Direction { kSend, kReceive };

// A send or a receive, from its submission to its end.
struct Operation {
  using List = std::list<Operation>;

  Direction direction = Direction::kSend;
  int client = 0;
  Tag tag = 0;
  std::byte* bytes = nullptr;  // a send only reads them
  size_t num_bytes = 0;
  Engine::Keeper keeper;
  Engine::Done done;  // null for an orphan: an operation that ended with an error, whose memory the
                      // library may still use

  // The fields below are used by Connections alone.
  Connections* owner = nullptr;
  void* request = nullptr;  // the library's, while that has it
  size_t num_moved = 0;     // bytes that need not be touched again
  List* home = nullptr;     // the list that `self` is in
  List::iterator self = {};
  Status forced_end;  // the result where it is an error, whatever the library says
};

class Connections {
 public:
  virtual ~Connections() = default;

  // Starts the first operation of `from`, or ends it where the client is not connected.
  virtual void start(Operation::List& from) = 0;

  struct Offer {
    bool is_connected = false;  // then the rest is unset
    uint64_t number = 0;        // of the connection
    uint64_t num_cuts = 0;      // tells meet() of a cut since
    std::string text;           // for the peer's meet(): one word, a blank, the place for messages
  };
  // This client's offer to a client for their next connection.
  virtual StatusOr<Offer> offer(int client) = 0;
  // Connects by the peer's offer of the same number. `done` is called when the connection is made
  // or has failed; several calls may wait for one connection.
  virtual void meet(int client, const Offer& own, const std::string& peer_text,
                    Engine::Done done) = 0;

  // As Engine::cut().
  virtual void cut(int client, const Status& reason) = 0;
  // Cuts all. Nothing of the library uses memory of operations afterwards.
  virtual void end(const Status& reason) = 0;
  // In a forked child: leaves all objects of the library as they are, for they are the parent's.
  virtual void abandon() = 0;

  // Runs the callbacks of ended operations. Returns whether there was anything to do.
  virtual bool progress() = 0;
  // Prepares for sleep on the descriptors. False where progress() has to be called first.
  virtual bool arm() = 0;
  virtual void append_descriptors(std::vector<pollfd>& descriptors) const = 0;
  // progress() is called again after so long, whatever the descriptors say.
  virtual absl::Duration longest_sleep() const { return absl::InfiniteDuration(); }
};

}  // namespace tessera::network

#endif  // TESSERA_TRANSPORT_CONNECTIONS_H_
