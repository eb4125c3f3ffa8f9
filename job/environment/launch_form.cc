// SPDX-License-Identifier: Apache-2.0
#include "job/environment/launch_form.h"

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/text.h"
#include "job/environment/address.h"

namespace tessera {

const LaunchForm kTesseraForm = {
    .name = "Tessera",
    .client_id = "TESSERA_CLIENT_ID",
    .num_clients = "TESSERA_NUM_CLIENTS",
    .address = "TESSERA_COORDINATOR",
    .marks = {"TESSERA_COORDINATOR", "TESSERA_CLIENT_ID", "TESSERA_NUM_CLIENTS"}};
const LaunchForm kTorchrunForm = {.name = "torchrun",
                                  .client_id = "RANK",
                                  .num_clients = "WORLD_SIZE",
                                  .address = "MASTER_ADDR",
                                  .port = "MASTER_PORT",
                                  .marks = {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"},
                                  .local_rank = "LOCAL_RANK",
                                  .local_size = "LOCAL_WORLD_SIZE"};
const LaunchForm kOpenMpiForm = {.name = "Open MPI",
                                 .client_id = "OMPI_COMM_WORLD_RANK",
                                 .num_clients = "OMPI_COMM_WORLD_SIZE",
                                 .address = "TESSERA_COORDINATOR",
                                 .marks = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                 .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
                                 .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
                                 .is_without_address = true};
const LaunchForm kSlurmForm = {.name = "Slurm",
                               .client_id = "SLURM_PROCID",
                               .num_clients = "SLURM_NTASKS",
                               .address = "TESSERA_COORDINATOR",
                               .marks = {"SLURM_PROCID", "SLURM_NTASKS"},
                               .num_hosts = "SLURM_STEP_NUM_NODES",
                               .is_without_address = true};
const LaunchForm kSlurmStepForm = {
    .name = "Slurm step",
    .client_id = "SLURM_PROCID",
    .num_clients = "SLURM_STEP_NUM_TASKS",
    .address = "TESSERA_COORDINATOR",
    .marks = {"SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"},
    .is_without_address = true};
const LaunchForm kHydraForm = {.name = "Hydra",
                               .client_id = "PMI_RANK",
                               .num_clients = "PMI_SIZE",
                               .address = "TESSERA_COORDINATOR",
                               .marks = {"PMI_RANK", "PMI_SIZE"},
                               .local_rank = "MPI_LOCALRANKID",
                               .local_size = "MPI_LOCALNRANKS",
                               .is_without_address = true};
const LaunchForm kPmixForm = {.name = "PMIx",
                              .client_id = "PMIX_RANK",
                              .num_clients = "TESSERA_NUM_CLIENTS",
                              .address = "TESSERA_COORDINATOR",
                              .marks = {"PMIX_RANK"},
                              .is_without_address = true};
const LaunchForm kTfDtensorForm = {
    .name = "TF DTensor",
    .client_id = "DTENSOR_CLIENT_ID",
    .num_clients = "DTENSOR_NUM_CLIENTS",
    .address = "DTENSOR_JOBS",
    .marks = {"DTENSOR_CLIENT_ID", "DTENSOR_NUM_CLIENTS", "DTENSOR_JOBS"}};

namespace {

// FNV-1a.
uint32_t hash_of(absl::string_view text) {
  uint32_t hash = 0x811c9dc5;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x01000193;
  return hash;
}

// A number that the clients of one mpirun or srun have in common. Other launches on the host hardly
// ever have the same one.
std::optional<uint64_t> launch_number(const LaunchForm& form, const EnvironmentLookup& lookup) {
  if (&form == &kOpenMpiForm) {
    for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}) {
      if (is_set(lookup, name)) return hash_of(lookup(name));
    }
    return std::nullopt;
  }
  if (&form != &kSlurmForm) return std::nullopt;
  const char* const job = lookup("SLURM_JOB_ID");
  const char* const step = lookup("SLURM_STEP_ID");
  uint64_t job_id;
  uint64_t step_id;
  if (job == nullptr || !absl::SimpleAtoi(job, &job_id)) return std::nullopt;
  if (step == nullptr || !absl::SimpleAtoi(step, &step_id)) return std::nullopt;
  return slurm_launch_number(job_id, step_id);
}

// Whether all clients are on one host, where the launcher says so.
std::optional<bool> is_on_one_host(const LaunchForm& form, const EnvironmentLookup& lookup,
                                   int num_clients) {
  const char* const name = form.local_size != nullptr ? form.local_size : form.num_hosts;
  const char* const text = name == nullptr ? nullptr : lookup(name);
  int number;
  if (text == nullptr || !absl::SimpleAtoi(text, &number)) return std::nullopt;
  return number == (form.local_size != nullptr ? num_clients : 1);
}

Status missing(const LaunchForm& form, const char* name, absl::string_view range) {
  return absl::InvalidArgumentError(absl::StrCat(name, " is not set, but other variables of the ",
                                                 form.name, " form are; set it (", range,
                                                 "), or unset the others"));
}

StatusOr<std::string> read_address(const LaunchForm& form, const EnvironmentLookup& lookup) {
  const char* address = lookup(form.address);
  if (address == nullptr) {
    return missing(form, form.address,
                   form.port == nullptr ? "host:port of client 0" : "host of client 0");
  }
  if (form.port == nullptr) {
    const std::vector<std::string> hosts = absl::StrSplit(address, ',');
    return hosts[0];
  }
  const char* port = lookup(form.port);
  if (port == nullptr) return missing(form, form.port, "1 to 65535");
  TESSERA_ASSIGN_OR_RETURN(int number, read_number(form.port, port, 1, 65535));
  const char* const agent_store = lookup("TORCHELASTIC_USE_AGENT_STORE");
  if (agent_store != nullptr && absl::string_view(agent_store) == "True") {
    number += number < 65535 ? 1 : -1;
  }
  return join_address(address, number);
}

// The place among the processes of the host, where the launcher gives one.
Status read_local(const LaunchForm& form, const EnvironmentLookup& lookup, LaunchedClient* client) {
  if (form.local_size == nullptr || !is_set(lookup, form.local_size)) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(client->local_size,
                           read_number(form.local_size, lookup(form.local_size), 1, kMostClients));
  if (!is_set(lookup, form.local_rank)) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(client->local_rank, read_number(form.local_rank, lookup(form.local_rank),
                                                           0, *client->local_size - 1));
  return absl::OkStatus();
}

}  // namespace

bool any_set(const EnvironmentLookup& lookup, const std::vector<const char*>& names) {
  for (const char* name : names) {
    if (is_set(lookup, name)) return true;
  }
  return false;
}

StatusOr<int> read_number(const char* name, absl::string_view text, int64_t least, int64_t most) {
  int64_t value;
  if (!absl::SimpleAtoi(text, &value) || value < least || value > most) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " is ", in_quotes(text), "; it must be a whole number from ", least, " to ", most));
  }
  return static_cast<int>(value);
}

std::optional<std::string> address_of_launch(const LaunchForm& form,
                                             const EnvironmentLookup& lookup) {
  const char* const size = lookup(form.num_clients);
  int num_clients;
  if (size == nullptr || !absl::SimpleAtoi(size, &num_clients) || num_clients == 1) {
    return std::nullopt;
  }
  if (!is_set(lookup, form.client_id)) return std::nullopt;
  if (!is_on_one_host(form, lookup, num_clients).value_or(false)) return std::nullopt;
  const std::optional<uint64_t> number = launch_number(form, lookup);
  if (!number.has_value()) return std::nullopt;
  return absl::StrCat("127.0.0.1:", kFirstPort + *number % kNumPorts);
}

StatusOr<LaunchedClient> read_form(const LaunchForm& form, const EnvironmentLookup& lookup,
                                   const LaunchOverrides& overrides) {
  LaunchedClient client;
  if (overrides.num_clients.has_value()) {
    client.num_clients = *overrides.num_clients;
  } else {
    const char* text = lookup(form.num_clients);
    if (text == nullptr) {
      return missing(form, form.num_clients, absl::StrCat("1 to ", kMostClients));
    }
    TESSERA_ASSIGN_OR_RETURN(client.num_clients,
                             read_number(form.num_clients, text, 1, kMostClients));
  }
  if (overrides.client_id.has_value()) {
    client.client_id = *overrides.client_id;
  } else {
    const char* text = lookup(form.client_id);
    if (text == nullptr) return missing(form, form.client_id, "0 to the number of clients - 1");
    TESSERA_ASSIGN_OR_RETURN(client.client_id,
                             read_number(form.client_id, text, 0, client.num_clients - 1));
  }
  client.on_one_host = is_on_one_host(form, lookup, client.num_clients);
  TESSERA_RETURN_IF_ERROR(read_local(form, lookup, &client));
  if (!overrides.coordinator.empty()) {
    client.coordinator = overrides.coordinator;
  } else if (form.is_without_address && !is_set(lookup, form.address)) {
    client.coordinator = address_of_launch(form, lookup).value_or("");
  } else {
    TESSERA_ASSIGN_OR_RETURN(client.coordinator, read_address(form, lookup));
  }
  return client;
}

}  // namespace tessera
