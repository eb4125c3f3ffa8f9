// SPDX-License-Identifier: Apache-2.0
//
// Connections: the interface between an engine and a library: connections, messages, and their
// ends. UCX implements it, and PacketConnections implements it for libraries that move packets.
// ConnectionStates (connection_states.h) decides when a client is connected. ThreadedEngine makes
// an Engine of both.
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

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "transport/engine.h"

namespace tessera::transport {

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
  void* request = nullptr;  // of the library, while it owns one
  size_t num_moved = 0;     // bytes that need not be touched again
  List* home = nullptr;     // the list that `self` is in
  List::iterator self = {};
  Status forced_end;  // the result where it is an error, whatever the library says
};

// The address at which a client receives messages, as its engine says.
struct Address {
  std::string word;   // the library's own, without blanks
  std::string place;  // for messages: "10.0.0.7 (interface "eth0")"

  // "WORD PLACE".
  static Address parse(const std::string& text);
};

// The Internal of a receive for which a message of another size has arrived.
Status wrong_size(const std::string& sender, const Operation& receive, absl::string_view size);

class Connections {
 public:
  // Receives the changes of connections, inside of open(), start() or progress().
  class Site {
   public:
    // The connection that open() has begun is there, in both directions.
    virtual void opened(int client) = 0;
    // The connection is broken, or its other end has closed it. Closes it; not called inside of
    // start().
    virtual void broken(int client, const Status& reason) = 0;

   protected:
    ~Site() = default;
  };

  virtual ~Connections() = default;

  // The text of the Address by which a client opens its end of connection `number` to this client.
  // Constant until close().
  virtual StatusOr<std::string> offer(int client, uint64_t number) = 0;
  // Opens this end of the connection that was offered last. An error leaves it offered.
  virtual Status open(int client, const Address& peer) = 0;
  // Starts the first operation of `from`. Its client is connected.
  virtual void start(Operation::List& from) = 0;
  // Takes back the offer, closes the connection if it was opened, without regard to the peer, and
  // ends its operations with `reason`.
  virtual void close(int client, const Status& reason) = 0;
  // After close() of all. Nothing of the library uses memory of operations afterwards.
  virtual void end() = 0;
  // In a forked child: leaves all objects of the library as they are, for they are the parent's.
  virtual void abandon() = 0;

  // Runs the callbacks of ended operations. Returns whether there was anything to do.
  virtual bool progress() = 0;
  // Prepares for sleep on the descriptors. False where progress() has to be called first.
  virtual bool arm() = 0;
  virtual void append_descriptors(std::vector<pollfd>& descriptors) const = 0;
  // Upper limit of the time between two calls of progress(), whatever the descriptors say.
  virtual absl::Duration longest_sleep() const { return absl::InfiniteDuration(); }
};

}  // namespace tessera::transport

#endif  // TESSERA_TRANSPORT_CONNECTIONS_H_
