// SPDX-License-Identifier: Apache-2.0
//
// Connections: what the thread of a UcxEngine does: endpoints, messages, and their ends.
//
// Of one client, seen from this one:
//
//   none --offer()--> offered --meet()--> meeting --greetings both ways--> connected
//                        ^                   |                                |
//                        +-------------------+---- cut(), or found broken ----+
//
// An offer is the address of a worker and the number of the connection. Each end makes an offer for
// number n and reads the peer's offer for number n; the coordinator carries them. An offer stays
// valid until the connection is made.
//
// A cut closes the endpoint by force, which ends sends. A receive that is partly filled does not
// end: it becomes an orphan of its worker. Messages of the peer that no receive has matched stay
// there too. So:
//
// Invariants:
//   1. A worker on which a connection was cut takes no new ones: the next offer is of a new worker.
//   2. It is destroyed, and its orphans' keepers are released, once no client is connected by it or
//      has an offer of it.
//   3. An operation is in exactly one list: pending of its peer, or orphans of a worker.
//   4. Callbacks of UCX change no endpoint and no worker: what `done` submits goes through the
//      engine's queue, and a broken endpoint is only noted.
//
// Used by the engine's thread alone.
#ifndef TESSERA_COLLECTIVES_UCX_CONNECTIONS_H_
#define TESSERA_COLLECTIVES_UCX_CONNECTIONS_H_

#include <poll.h>
#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "collectives/network/engine.h"
#include "collectives/ucx/worker.h"
#include "job/coordinator.h"

namespace tessera::ucx {

class Connections;

enum class Direction { kSend, kReceive };

// A send or a receive, from its submission to its end.
struct Operation {
  using List = std::list<Operation>;

  Direction direction = Direction::kSend;
  int client = 0;
  network::Tag tag = 0;
  std::byte* bytes = nullptr;  // a send only reads them
  size_t num_bytes = 0;
  network::Engine::Keeper keeper;
  network::Engine::Done done;  // null for an orphan

  // Set by Connections.
  Connections* owner = nullptr;
  void* request = nullptr;  // UCX's, while that has it
  List* home = nullptr;     // the list that `self` is in
  List::iterator self = {};
  Status forced_end;  // the result where it is an error, whatever UCX says
};

class Connections {
 public:
  // `lost` is called as Engine::LostListener, from progress().
  Connections(const Coordinator& coordinator, std::string interface,
              network::Engine::LostListener lost);
  Connections(const Connections&) = delete;
  ~Connections();  // requires that end() was called, or nothing else

  // Starts the first operation of `from`, or ends it where the client is not connected.
  void start(Operation::List& from);

  struct Offer {
    bool is_connected = false;  // then the rest is unset
    uint64_t number = 0;        // of the connection
    uint64_t num_cuts = 0;      // tells meet() of a cut since
    std::string text;           // for the peer's meet()
  };
  // What this client offers to a client for their next connection. Loads UCX at first.
  StatusOr<Offer> offer(int client);
  // Connects by the peer's offer of the same number. `done` is called when the connection is made
  // or has failed; several calls may wait for one connection.
  void meet(int client, const Offer& own, const std::string& peer_text, network::Engine::Done done);

  // As Engine::cut().
  void cut(int client, const Status& reason);
  // Cuts all, and destroys all workers.
  void end(const Status& reason);
  // In a forked child: leaves all objects of UCX as they are, for they are the parent's.
  void abandon();

  // Runs callbacks of what has ended. Whether there was anything to do.
  bool progress();
  // Prepares for sleep on the descriptors. False where progress() has to be called first.
  bool arm();
  void append_descriptors(std::vector<pollfd>& descriptors) const;

 private:
  struct Slot {
    Operation::List orphans;         // after the worker, which uses their memory
    std::unique_ptr<Worker> worker;  // destroyed first
    int num_users = 0;               // clients with an offer of it or connected by it
    bool is_tainted = false;         // a connection on it was cut
  };
  enum class State { kNone, kOffered, kMeeting, kConnected };
  struct Peer {
    Connections* owner = nullptr;
    int client = 0;
    State state = State::kNone;
    uint64_t number = 1;  // of the next connection, or the present one
    uint64_t num_cuts = 0;
    Status status;         // unless connected: how operations end
    Slot* slot = nullptr;  // unless kNone
    ucp_ep_h endpoint = nullptr;
    std::string place;  // the peer's own words for its address
    Operation::List pending;
    Status broken;  // an error where UCX says so and cut() is still due
    std::vector<network::Engine::Done> waiting;  // in kMeeting
    uint64_t greeting_out = 0, greeting_in = 0;
    int num_greetings = 0;
  };

  Peer& peer_of(int client);
  std::string name_of(int client) const;
  Status not_connected(int client) const;
  StatusOr<Slot*> untainted_slot();
  // Takes a user from the slot of a peer, which is destroyed where that was the last.
  void release_slot(Peer& peer);
  Status open_endpoint(Peer& peer, const std::string& address);
  void greet(Peer& peer);
  void take_greeting(Peer& peer, uint64_t number, const Status& status);

  // Hands the first operation of `from` to UCX. `tag` is of 41 bits.
  void hand_over(Peer& peer, Operation::List& from, uint64_t tag);
  void finish(Operation& operation, ucs_status_t status, size_t num_bytes);
  Status result_of(const Operation& operation, ucs_status_t status, size_t num_bytes);
  // Records that UCX has found the endpoint broken. Returns what operations end with.
  Status note_broken(Peer& peer, ucs_status_t status);
  void cut_broken();
  void close_endpoint(Peer& peer);
  // Ends the pending operations of a peer whose endpoint is closed.
  void end_pending(Peer& peer, const Status& reason);

  static void on_sent(void* request, ucs_status_t status, void* operation);
  static void on_received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                          void* operation);
  static void on_closed(void* request, ucs_status_t status, void* connections);
  static void on_error(void* peer, ucp_ep_h endpoint, ucs_status_t status);

  const Coordinator& coordinator_;
  const std::string interface_;
  const network::Engine::LostListener lost_;
  std::shared_ptr<const Context> context_;  // null before the first offer
  std::map<int, Peer> peers_;               // their addresses are UCX's user data
  std::list<Slot> slots_;
  const Operation* handed_over_ = nullptr;  // in a call of UCX, and not finished by that
  bool any_broken_ = false;
  Status end_;  // why everything fails, after end()
};

}  // namespace tessera::ucx

#endif  // TESSERA_COLLECTIVES_UCX_CONNECTIONS_H_
