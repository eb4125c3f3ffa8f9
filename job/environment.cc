// SPDX-License-Identifier: Apache-2.0
#include "job/environment.h"

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "job/address.h"

namespace tessera {
namespace {

constexpr int64_t kMostClients = 1'000'000;
constexpr int64_t kMostDevices = 65'536;

// The ports of jobs whose launcher gives none: above those that the kernel hands out by default.
constexpr uint64_t kFirstPort = 61440;
constexpr uint64_t kNumPorts = 4096;

// One way to say which clients take part. `address` names the variable of the coordinator, `port`
// that of its port where it is apart.
struct Form {
  const char* name;
  const char* client_id;
  const char* num_clients;
  const char* address;
  const char* port;
  // Whose presence says that this form is meant.
  std::vector<const char*> marks;
  // Where the launcher says so: how many clients, or hosts, it has started here; null: it does not.
  const char* local_clients = nullptr;
  const char* num_hosts = nullptr;
};

const Form kOpenMpiForm = {"Open MPI",
                           "OMPI_COMM_WORLD_RANK",
                           "OMPI_COMM_WORLD_SIZE",
                           "TESSERA_COORDINATOR",
                           nullptr,
                           {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                           "OMPI_COMM_WORLD_LOCAL_SIZE"};
const Form kSlurmForm = {"Slurm",        "SLURM_PROCID",
                         "SLURM_NTASKS", "TESSERA_COORDINATOR",
                         nullptr,        {"SLURM_PROCID", "SLURM_NTASKS"},
                         nullptr,        "SLURM_STEP_NUM_NODES"};
const Form kTfForm = {"TF DTensor",
                      "DTENSOR_CLIENT_ID",
                      "DTENSOR_NUM_CLIENTS",
                      "DTENSOR_JOBS",
                      nullptr,
                      {"DTENSOR_CLIENT_ID", "DTENSOR_NUM_CLIENTS", "DTENSOR_JOBS"}};
const Form kTesseraForm = {"Tessera",
                           "TESSERA_CLIENT_ID",
                           "TESSERA_NUM_CLIENTS",
                           "TESSERA_COORDINATOR",
                           nullptr,
                           {"TESSERA_COORDINATOR", "TESSERA_CLIENT_ID", "TESSERA_NUM_CLIENTS"}};
const Form kTorchForm = {"torchrun",        "RANK",
                         "WORLD_SIZE",      "MASTER_ADDR",
                         "MASTER_PORT",     {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"},
                         "LOCAL_WORLD_SIZE"};

bool is_set(const EnvironmentLookup& lookup, const char* name) { return lookup(name) != nullptr; }

bool any_set(const EnvironmentLookup& lookup, const std::vector<const char*>& names) {
  for (const char* name : names) {
    if (is_set(lookup, name)) return true;
  }
  return false;
}

// FNV-1a.
uint32_t hash_of(absl::string_view text) {
  uint32_t hash = 0x811c9dc5;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x01000193;
  return hash;
}

// A number that the clients of one mpirun or srun have in common. Other launches on the host hardly
// ever have the same one.
std::optional<uint64_t> launch_number(const Form& form, const EnvironmentLookup& lookup) {
  if (&form == &kOpenMpiForm) {
    for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}) {
      if (is_set(lookup, name)) return hash_of(lookup(name));
    }
    return std::nullopt;
  }
  const char* const job = lookup("SLURM_JOB_ID");
  const char* const step = lookup("SLURM_STEP_ID");
  uint64_t job_id;
  uint64_t step_id;
  if (job == nullptr || !absl::SimpleAtoi(job, &job_id)) return std::nullopt;
  if (step == nullptr || !absl::SimpleAtoi(step, &step_id)) return std::nullopt;
  return job_id + 257 * step_id;
}

// Whether all clients are on one host, where the launcher says so.
std::optional<bool> is_on_one_host(const Form& form, const EnvironmentLookup& lookup,
                                   int num_clients) {
  const char* const name = form.local_clients != nullptr ? form.local_clients : form.num_hosts;
  const char* const text = name == nullptr ? nullptr : lookup(name);
  int number;
  if (text == nullptr || !absl::SimpleAtoi(text, &number)) return std::nullopt;
  return number == (form.local_clients != nullptr ? num_clients : 1);
}

// The address of a job that mpirun or srun started on one host without TESSERA_COORDINATOR; none
// for one client, for clients on several hosts, and where the launcher does not say how many hosts
// there are. A batch script of Slurm has SLURM_PROCID too, but no SLURM_STEP_ variables.
std::optional<std::string> address_of_launch(const Form& form, const EnvironmentLookup& lookup) {
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

// The form that the environment is written in; null where there is none. `address` is the one that
// the program gives, or empty.
const Form* find_form(const EnvironmentLookup& lookup, absl::string_view address) {
  // The address alone is shared with Open MPI and Slurm: the ids tell the forms apart.
  if (any_set(lookup, {"TESSERA_CLIENT_ID", "TESSERA_NUM_CLIENTS"})) return &kTesseraForm;
  if (any_set(lookup, kTorchForm.marks)) return &kTorchForm;
  const bool has_address = is_set(lookup, "TESSERA_COORDINATOR");
  for (const Form* form : {&kOpenMpiForm, &kSlurmForm}) {
    if (!any_set(lookup, form->marks)) continue;
    if (has_address || !address.empty() || address_of_launch(*form, lookup).has_value()) {
      return form;
    }
  }
  if (any_set(lookup, kTfForm.marks)) return &kTfForm;
  return has_address ? &kTesseraForm : nullptr;
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

// What tells this job from another one that uses the same address, and an attempt from the one
// before it. Empty where the program itself says which client it is: the names of launchers are
// those of their own jobs.
std::string job_name(const Form* form, const EnvironmentLookup& lookup, const JobEnvironment& job) {
  const auto value = [&lookup](const char* name) {
    const char* const text = lookup(name);
    return absl::string_view(text == nullptr ? "" : text);
  };
  if (form == nullptr) return "";
  if (!value("TESSERA_JOB").empty()) return std::string(value("TESSERA_JOB"));
  if (form == &kTorchForm) {
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
  TESSERA_ASSIGN_OR_RETURN(int number, read_number(form.port, port, 1, 65535));
  const char* const agent_store = lookup("TORCHELASTIC_USE_AGENT_STORE");
  if (agent_store != nullptr && absl::string_view(agent_store) == "True") {
    number += number < 65535 ? 1 : -1;
  }
  return join_address(address, number);
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
  job->on_one_host = is_on_one_host(form, lookup, job->num_clients);
  if (!overrides.coordinator.empty()) return absl::OkStatus();
  const bool is_launched = &form == &kOpenMpiForm || &form == &kSlurmForm;
  if (is_launched && !is_set(lookup, form.address)) {
    // find_form() has seen that there is one.
    job->coordinator = address_of_launch(form, lookup).value_or("");
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(job->coordinator, read_address(form, lookup));
  return absl::OkStatus();
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
  const Form* form = all_given ? nullptr : find_form(lookup, overrides.coordinator);
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
  job.job = job_name(form, lookup, job);
  const char* const hosted = lookup("TESSERA_HOSTED_COORDINATOR");
  job.coordinator_is_hosted = overrides.coordinator_is_hosted.value_or(
      hosted != nullptr && !job.coordinator.empty() && job.coordinator == hosted);
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
