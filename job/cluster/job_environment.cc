// SPDX-License-Identifier: Apache-2.0
#include "job/cluster/job_environment.h"

#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "job/cluster/cluster.h"
#include "job/cluster/cluster_tasks.h"
#include "job/environment/launch_form.h"

namespace tessera {
namespace {

constexpr int64_t kMostDevices = 65'536;

// The form that the environment is written in; null where there is none. `address`: from the
// program, or empty.
const LaunchForm* find_form(const EnvironmentLookup& lookup, absl::string_view address) {
  // The address alone is shared with other forms: the ids tell them apart.
  if (any_set(lookup, {"TESSERA_CLIENT_ID", "TESSERA_NUM_CLIENTS"})) return &kTesseraForm;
  if (any_set(lookup, kTorchrunForm.marks)) return &kTorchrunForm;
  const bool has_address = is_set(lookup, "TESSERA_COORDINATOR");
  const auto is_meant = [&](const LaunchForm& form) {
    return any_set(lookup, form.marks) &&
           (has_address || !address.empty() || address_of_launch(form, lookup).has_value());
  };
  for (const LaunchForm* form : {&kOpenMpiForm, &kSlurmForm}) {
    if (is_meant(*form)) return form;
  }
  if (any_set(lookup, kTfDtensorForm.marks)) return &kTfDtensorForm;
  if (is_meant(kHydraForm)) return &kHydraForm;
  return has_address ? &kTesseraForm : nullptr;
}

// The client that the environment says this process is; what `overrides` has is not read.
StatusOr<LaunchedClient> read_client(const LaunchForm* form, const EnvironmentLookup& lookup,
                                     const LaunchOverrides& overrides) {
  if (form != nullptr) return read_form(*form, lookup, overrides);
  TESSERA_ASSIGN_OR_RETURN(const cluster::Cluster found, cluster::tf_config(lookup));
  TESSERA_ASSIGN_OR_RETURN(const cluster::Membership membership, cluster::membership_of(found));
  LaunchedClient client;
  client.client_id = overrides.client_id.value_or(membership.client_id);
  client.num_clients = overrides.num_clients.value_or(membership.num_clients);
  client.coordinator =
      overrides.coordinator.empty() ? membership.coordinator : overrides.coordinator;
  return client;
}

// A name that distinguishes this job from another job with the same address, and an attempt from
// the attempt before. Empty where the program itself says which client it is: the names of
// launchers belong to the launchers' own jobs.
std::string job_name(const LaunchForm* form, const EnvironmentLookup& lookup,
                     const JobEnvironment& job) {
  const auto value = [&lookup](const char* name) {
    const char* const text = lookup(name);
    return absl::string_view(text == nullptr ? "" : text);
  };
  if (form == nullptr) return "";
  if (!value("TESSERA_JOB").empty()) return std::string(value("TESSERA_JOB"));
  if (form == &kTorchrunForm) {
    std::string name;
    if (!value("TORCHELASTIC_RUN_ID").empty()) {
      absl::StrAppend(&name, "torchrun ", value("TORCHELASTIC_RUN_ID"));
    }
    // Each agent counts restarts by itself: clients of two agents may have different counts in one
    // attempt.
    if (job.on_one_host.value_or(false) && !value("TORCHELASTIC_RESTART_COUNT").empty()) {
      absl::StrAppend(&name, name.empty() ? "torchrun" : "", " attempt ",
                      value("TORCHELASTIC_RESTART_COUNT"));
    }
    return name;
  }
  if (form == &kOpenMpiForm && !value("PMIX_NAMESPACE").empty()) {
    return absl::StrCat("mpirun ", value("PMIX_NAMESPACE"));
  }
  if (form == &kSlurmForm && !value("SLURM_STEP_ID").empty()) {
    return absl::StrCat("slurm ", value("SLURM_JOB_ID"), ".", value("SLURM_STEP_ID"));
  }
  return "";
}

}  // namespace

StatusOr<JobEnvironment> read_job_environment(const JobOverrides& overrides,
                                              const EnvironmentLookup& lookup) {
  JobEnvironment job;
  job.coordinator = overrides.coordinator;
  job.num_clients = overrides.num_clients.value_or(1);
  job.client_id = overrides.client_id.value_or(0);
  // A program that wants to be alone is, whatever started it.
  const bool is_alone = overrides.num_clients == 1 && job.client_id == 0;
  const bool all_given =
      is_alone || (!overrides.coordinator.empty() && overrides.client_id.has_value() &&
                   overrides.num_clients.has_value());
  const LaunchForm* form = all_given ? nullptr : find_form(lookup, overrides.coordinator);
  if (!all_given) {
    TESSERA_ASSIGN_OR_RETURN(const LaunchedClient client,
                             read_client(form, lookup,
                                         {.coordinator = overrides.coordinator,
                                          .client_id = overrides.client_id,
                                          .num_clients = overrides.num_clients}));
    job.client_id = client.client_id;
    job.num_clients = client.num_clients;
    job.coordinator = client.coordinator;
    job.on_one_host = client.on_one_host;
  }
  if (job.num_clients < 1 || job.num_clients > kMostClients) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_clients is ", job.num_clients, "; it must be from 1 to ", kMostClients));
  }
  if (job.client_id < 0 || job.client_id >= job.num_clients) {
    return absl::InvalidArgumentError(absl::StrCat("client_id is ", job.client_id, "; a job of ",
                                                   job.num_clients, " clients has ids 0 to ",
                                                   job.num_clients - 1));
  }
  if (job.num_clients > 1 && job.coordinator.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a job of ", job.num_clients,
                     " clients needs the address of its coordinator; set "
                     "ClientOptions::coordinator or TESSERA_COORDINATOR to host:port of client 0"));
  }
  job.num_local_devices = overrides.num_local_devices;
  if (job.num_local_devices == 0) {
    const char* text = lookup("TESSERA_LOCAL_DEVICES");
    job.num_local_devices = overrides.default_local_devices;
    if (text != nullptr) {
      TESSERA_ASSIGN_OR_RETURN(job.num_local_devices,
                               read_number("TESSERA_LOCAL_DEVICES", text, 1, kMostDevices));
    }
  }
  if (job.num_local_devices < 1 || job.num_local_devices > kMostDevices) {
    return absl::InvalidArgumentError(absl::StrCat("num_local_devices is ", job.num_local_devices,
                                                   "; it must be from 1 to ", kMostDevices));
  }
  job.job = job_name(form, lookup, job);
  const char* const hosted = lookup("TESSERA_HOSTED_COORDINATOR");
  job.coordinator_is_hosted = overrides.coordinator_is_hosted.value_or(
      hosted != nullptr && !job.coordinator.empty() && job.coordinator == hosted);
  const char* const relay = lookup("TESSERA_COORDINATOR_RELAY");
  if (relay != nullptr && hosted != nullptr && job.coordinator == hosted) job.relay = relay;
  job.token = overrides.token;
  const char* token = lookup("TESSERA_TOKEN");
  if (job.token.empty() && token != nullptr) job.token = token;
  const char* share = lookup("TESSERA_SHARE_GPUS");
  if (overrides.share_gpus.has_value()) {
    job.share_gpus = *overrides.share_gpus;
  } else if (share != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(const int value, read_number("TESSERA_SHARE_GPUS", share, 0, 1));
    job.share_gpus = value == 1;
  }
  return job;
}

StatusOr<JobEnvironment> read_job_environment(const JobOverrides& overrides) {
  return read_job_environment(overrides, [](const char* name) { return std::getenv(name); });
}

}  // namespace tessera
