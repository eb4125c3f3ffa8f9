// SPDX-License-Identifier: Apache-2.0
#include "job/cluster/cluster_launchers.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/text.h"
#include "job/cluster/cluster_tasks.h"
#include "job/environment/address.h"

namespace tessera::cluster {
namespace {

// For launchers that give no address of client 0: `how` passes a variable on to all clients.
StatusOr<Cluster> read_with_address(const LaunchForm& form, const char* command,
                                    const EnvironmentLookup& lookup, absl::string_view how) {
  TESSERA_ASSIGN_OR_RETURN(Cluster cluster, read_launcher(form, command, lookup));
  if (cluster.num_clients == 1 || !cluster.coordinator.empty()) return cluster;
  return absl::InvalidArgumentError(
      absl::StrCat("TESSERA_COORDINATOR is not set, and nothing that ", form.name,
                   " sets names the job and the host of client 0 of ", cluster.num_clients,
                   "; set TESSERA_COORDINATOR to host:port of client 0 for all clients", how));
}

}  // namespace

StatusOr<Cluster> read_launcher(const LaunchForm& form, const char* command,
                                const EnvironmentLookup& lookup) {
  TESSERA_RETURN_IF_ERROR(check_lookup(form.name, lookup));
  if (!any_set(lookup, form.marks)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this process is not under ", command, ": none of ", absl::StrJoin(form.marks, ", "),
        " is set; start it with ", command, ", or use another resolver"));
  }
  const char* const given = lookup("TESSERA_COORDINATOR");
  TESSERA_ASSIGN_OR_RETURN(LaunchedClient client,
                           read_form(form, lookup, {.coordinator = given == nullptr ? "" : given}));
  if (!client.coordinator.empty() && !parse_address(client.coordinator).has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(given == nullptr ? form.address : "TESSERA_COORDINATOR",
                     " gives the coordinator's address ", in_quotes(client.coordinator),
                     "; it must be HOST:PORT, as in host-a:4000"));
  }
  Cluster cluster;
  cluster.client_id = client.client_id;
  cluster.num_clients = client.num_clients;
  cluster.coordinator = std::move(client.coordinator);
  cluster.local_rank = client.local_rank;
  cluster.local_size = client.local_size;
  cluster.source = form.name;
  return cluster;
}

StatusOr<Cluster> torchrun(const EnvironmentLookup& lookup) {
  return read_launcher(kTorchrunForm, "torchrun", lookup);
}

StatusOr<Cluster> open_mpi(const EnvironmentLookup& lookup) {
  return read_with_address(kOpenMpiForm, "mpirun", lookup, " (mpirun -x TESSERA_COORDINATOR)");
}

StatusOr<Cluster> hydra(const EnvironmentLookup& lookup) {
  return read_with_address(kHydraForm, "mpiexec", lookup,
                           " (mpiexec -genvlist TESSERA_COORDINATOR)");
}

StatusOr<Cluster> pmix(const EnvironmentLookup& lookup) {
  TESSERA_RETURN_IF_ERROR(check_lookup(kPmixForm.name, lookup));
  const char* const rank = lookup(kPmixForm.client_id);
  if (rank != nullptr && !read_number("", rank, 0, kMostClients - 1).ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        kPmixForm.client_id, " is ", in_quotes(rank),
        ", which is not a rank; it must be a whole number from 0 to the number of clients - 1"));
  }
  if (rank != nullptr && !is_set(lookup, kPmixForm.num_clients)) {
    return absl::InvalidArgumentError(
        absl::StrCat(kPmixForm.num_clients, " is not set, and the environment of PMIx has no ",
                     "number of clients; set it for all clients"));
  }
  return read_with_address(kPmixForm, "a launcher with PMIx", lookup, "");
}

}  // namespace tessera::cluster
