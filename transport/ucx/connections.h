// SPDX-License-Identifier: Apache-2.0
//
// Connections of UCX: endpoints, messages, and their ends; see transport/connections.h.
//
// An offer is the address of a worker. The two ends of a connection send each other a greeting.
//
// close() closes the endpoint by force, which ends sends. A receive that is partly filled does not
// end: it becomes an orphan of its worker. Messages of the peer that no receive has matched stay
// there too. So:
//
// Invariants:
//   1. A worker on which a connection was closed takes no new ones: the next offer is of a new
//   worker.
//   2. It is destroyed, and its orphans' keepers are released, once no client is connected by it or
//      has an offer of it.
//   3. An operation is in exactly one list: pending of its peer, or orphans of a worker.
//   4. Callbacks of UCX change no endpoint and no worker: what `done` submits goes through the
//      engine's queue, and a broken endpoint is only noted.
//
// Used by the engine's thread alone.
#ifndef TESSERA_TRANSPORT_UCX_CONNECTIONS_H_
#define TESSERA_TRANSPORT_UCX_CONNECTIONS_H_

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
#include "job/coordinator/coordinator.h"
#include "transport/connections.h"
#include "transport/engine.h"
#include "transport/ucx/worker.h"

namespace tessera::ucx {

using transport::Direction;
using transport::Operation;

class Connections : public transport::Connections {
 public:
  // `site` must outlive it.
  Connections(const Coordinator& coordinator, std::string interface, Site& site);
  Connections(const Connections&) = delete;
  ~Connections() override;  // requires that end() was called, or nothing else

  // Loads UCX at first.
  StatusOr<std::string> offer(int client, uint64_t number) override;
  Status open(int client, const transport::Address& address) override;
  void start(Operation::List& from) override;
  void close(int client, const Status& reason) override;
  void end() override;  // destroys all workers
  void abandon() override;
  bool progress() override;
  bool arm() override;
  void append_descriptors(std::vector<pollfd>& descriptors) const override;

 private:
  struct Slot {
    Operation::List orphans;         // after the worker, which uses their memory
    std::unique_ptr<Worker> worker;  // destroyed first
    int num_users = 0;               // clients with an offer of it or connected by it
    bool is_tainted = false;         // a connection on it was closed
  };
  struct Peer {
    Connections* owner = nullptr;
    int client = 0;
    uint64_t number = 0;   // of the connection
    Slot* slot = nullptr;  // from the offer to the end of the connection
    ucp_ep_h endpoint = nullptr;
    std::string place;  // the peer's own words for its address
    Operation::List pending;
    Status broken;  // an error where UCX says so and the site is still to be told
    uint64_t greeting_out = 0, greeting_in = 0;
    int num_greetings = 0;
  };

  Peer& peer_of(int client);
  std::string name_of(int client) const;
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
  void tell_broken();
  void close_endpoint(Peer& peer, const Status& reason);
  // Ends the pending operations of a peer whose endpoint is closed.
  void end_pending(Peer& peer, const Status& reason);

  static void on_sent(void* request, ucs_status_t status, void* operation);
  static void on_received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                          void* operation);
  static void on_closed(void* request, ucs_status_t status, void* connections);
  static void on_error(void* peer, ucp_ep_h endpoint, ucs_status_t status);

  const Coordinator& coordinator_;
  const std::string interface_;
  Site& site_;
  std::shared_ptr<const Context> context_;  // null before the first offer
  std::map<int, Peer> peers_;               // their addresses are UCX's user data
  std::list<Slot> slots_;
  const Operation* handed_over_ = nullptr;  // in a call of UCX, and not finished by that
  bool any_broken_ = false;
};

}  // namespace tessera::ucx

#endif  // TESSERA_TRANSPORT_UCX_CONNECTIONS_H_
