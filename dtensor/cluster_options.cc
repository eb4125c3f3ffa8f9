// SPDX-License-Identifier: Apache-2.0
//
// cluster::client_options, which job/cluster/cluster.h declares: the options of a client are of
// this layer.
#include <utility>

#include "dtensor/client_options.h"
#include "job/cluster/cluster.h"
#include "job/cluster/cluster_tasks.h"

namespace tessera::cluster {

StatusOr<ClientOptions> client_options(const Cluster& cluster) {
  TESSERA_ASSIGN_OR_RETURN(Membership membership, membership_of(cluster));
  ClientOptions options;
  options.coordinator = std::move(membership.coordinator);
  options.client_id = membership.client_id;
  options.num_clients = membership.num_clients;
  return options;
}

}  // namespace tessera::cluster
