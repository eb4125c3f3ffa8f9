// SPDX-License-Identifier: Apache-2.0
//
// The exchange of the addresses at which the clients' engines receive messages
// (ConnectionStates::offer()), through the coordinator's key-value space.
//
//   exchange_offers()            for each pair two calls of each end
//   exchange_through_client_0()  at the start of a job: each client gives client 0 one text, which
//                                gives all of them to each: a few calls of each client
//
// The name of the engine travels with each offer, so that clients with different engines get an
// error that says so.
//
// Any thread. Blocks.
#ifndef TESSERA_TRANSPORT_OFFERS_H_
#define TESSERA_TRANSPORT_OFFERS_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "job/coordinator/coordinator.h"
#include "transport/connection_states.h"

namespace tessera::transport {

struct OfferExchange {
  int client = 0;
  Offer offer;            // of this client
  std::string peer_text;  // of the other client; empty: not there yet
};

// Fills in the texts that are not there yet. Returns the first error, with the rest filled in as
// far as possible: InvalidArgument where the engines differ; else the errors of Coordinator::get().
Status exchange_offers(Coordinator& coordinator, const std::string& engine,
                       std::vector<OfferExchange>& exchanges, absl::Time deadline);
// Collective over all clients of the job, once. Fills in the texts of pairs of which each end
// offers one text to all. Errors as above; all clients get the errors of client 0.
Status exchange_through_client_0(Coordinator& coordinator, const std::string& engine,
                                 std::vector<OfferExchange>& exchanges, absl::Time deadline);

}  // namespace tessera::transport

#endif  // TESSERA_TRANSPORT_OFFERS_H_
