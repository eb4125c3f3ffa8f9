// SPDX-License-Identifier: Apache-2.0
#include "job/environment.h"

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tessera {
namespace {

constexpr int64_t kMostClients = 1'000'000;
constexpr int64_t kMostDevices = 65'536;

// One way to say who takes part. `address` names the variable of the coordinator, `port` that of
// its port where it is apart.
struct Form {
  const char* name;
  const char* client_id;
  const char* num_clients;
  const char* address;
  const char* port;
  // Whose presence says that this form is meant.
  std::vector<const char*> marks;
};

const std::vector<Form>& forms() {
  static const auto* const kForms = new std::vector<Form>{
      {"Open MPI",
       "OMPI_COMM_WORLD_RANK",
       "OMPI_COMM_WORLD_SIZE",
       "TESSERA_COORDINATOR",
       nullptr,
       {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}},
      {"Slurm",
       "SLURM_PROCID",
       "SLURM_NTASKS",
       "TESSERA_COORDINATOR",
       nullptr,
       {"SLURM_PROCID", "SLURM_NTASKS"}},
      {"TF DTensor",
       "DTENSOR_CLIENT_ID",
       "DTENSOR_NUM_CLIENTS",
       "DTENSOR_JOBS",
       nullptr,
       {"DTENSOR_CLIENT_ID", "DTENSOR_NUM_CLIENTS", "DTENSOR_JOBS"}},
  };
  return *kForms;
}

const Form kTesseraForm = {"Tessera",
                           "TESSERA_CLIENT_ID",
                           "TESSERA_NUM_CLIENTS",
                           "TESSERA_COORDINATOR",
                           nullptr,
                           {"TESSERA_COORDINATOR", "TESSERA_CLIENT_ID", "TESSERA_NUM_CLIENTS"}};
const Form kTorchForm = {"torchrun",    "RANK",
                         "WORLD_SIZE",  "MASTER_ADDR",
                         "MASTER_PORT", {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"}};

bool is_set(const EnvironmentLookup& lookup, const char* name) { return lookup(name) != nullptr; }

bool any_set(const EnvironmentLookup& lookup, const std::vector<const char*>& names) {
  for (const char* name : names) {
    if (is_set(lookup, name)) return true;
  }
  return false;
}

// The form that the environment is written in; null where there is none.
const Form* find_form(const EnvironmentLookup& lookup) {
  // The address alone is shared with Open MPI and Slurm: the ids tell the forms apart.
  if (any_set(lookup, {"TESSERA_CLIENT_ID", "TESSERA_NUM_CLIENTS"})) return &kTesseraForm;
  if (any_set(lookup, kTorchForm.marks)) return &kTorchForm;
  for (const Form& form : forms()) {
    // A Slurm or MPI job may run programs that have nothing to do with it: the address says that
    // this one does.
    const bool is_ours =
        form.address == std::string("DTENSOR_JOBS") || is_set(lookup, "TESSERA_COORDINATOR");
    if (is_ours && any_set(lookup, form.marks)) return &form;
  }
  return is_set(lookup, "TESSERA_COORDINATOR") ? &kTesseraForm : nullptr;
}

StatusOr<int> read_number(const char* name, const char* text, int64_t least, int64_t most) {
  int64_t value;
  if (!absl::SimpleAtoi(text, &value) || value < least || value > most) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " is \"", text, "\"; it must be a whole number from ", least, " to ", most));
  }
  return static_cast<int>(value);
}

Status missing(const Form& form, const char* name, absl::string_view range) {
  return absl::InvalidArgumentError(absl::StrCat(name, " is not set, but other variables of the ",
                                                 form.name, " form are; set it (", range,
                                                 "), or unset the others"));
}

StatusOr<std::string> read_address(const Form& form, const EnvironmentLookup& lookup) {
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
  TESSERA_ASSIGN_OR_RETURN(const int number, read_number(form.port, port, 1, 65535));
  return absl::StrCat(address, ":", number);
}

Status read_form(const Form& form, const EnvironmentLookup& lookup, const JobOverrides& overrides,
                 JobEnvironment* job) {
  if (!overrides.num_clients.has_value()) {
    const char* text = lookup(form.num_clients);
    if (text == nullptr) {
      return missing(form, form.num_clients, absl::StrCat("1 to ", kMostClients));
    }
    TESSERA_ASSIGN_OR_RETURN(job->num_clients,
                             read_number(form.num_clients, text, 1, kMostClients));
  }
  if (!overrides.client_id.has_value()) {
    const char* text = lookup(form.client_id);
    if (text == nullptr) return missing(form, form.client_id, "0 to the number of clients - 1");
    TESSERA_ASSIGN_OR_RETURN(job->client_id,
                             read_number(form.client_id, text, 0, job->num_clients - 1));
  }
  if (overrides.coordinator.empty()) {
    TESSERA_ASSIGN_OR_RETURN(job->coordinator, read_address(form, lookup));
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<JobEnvironment> read_job_environment(const JobOverrides& overrides,
                                              const EnvironmentLookup& lookup) {
  JobEnvironment job;
  job.coordinator = overrides.coordinator;
  job.num_clients = overrides.num_clients.value_or(1);
  job.client_id = overrides.client_id.value_or(0);
  const bool all_given = !overrides.coordinator.empty() && overrides.client_id.has_value() &&
                         overrides.num_clients.has_value();
  const Form* form = all_given ? nullptr : find_form(lookup);
  if (form != nullptr) TESSERA_RETURN_IF_ERROR(read_form(*form, lookup, overrides, &job));
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
