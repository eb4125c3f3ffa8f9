// SPDX-License-Identifier: Apache-2.0
//
// Internal. LaunchForm: the variables by which a launcher gives its processes their client ids.
// read_job_environment() and the resolvers of cluster.h read them by the functions here.
#ifndef TESSERA_JOB_ENVIRONMENT_LAUNCH_FORM_H_
#define TESSERA_JOB_ENVIRONMENT_LAUNCH_FORM_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "job/environment/environment_lookup.h"

namespace tessera {

inline constexpr int64_t kMostClients = 1'000'000;

// The ports of jobs whose launcher gives none: above the kernel's default ephemeral ports.
inline constexpr uint64_t kFirstPort = 61440;
inline constexpr uint64_t kNumPorts = 4096;

// `address` names the variable of the coordinator, `port` the variable of its port where it is
// separate.
struct LaunchForm {
  const char* name;
  const char* client_id;
  const char* num_clients;
  const char* address;
  const char* port = nullptr;
  // The presence of such a variable selects this form.
  std::vector<const char*> marks;
  // Where the launcher says so: the rank of this process on its host, the number of processes
  // there, and the number of hosts. Null: it does not say so.
  const char* local_rank = nullptr;
  const char* local_size = nullptr;
  const char* num_hosts = nullptr;
  // The launcher itself gives no address, and also starts programs that are no clients of one job.
  bool is_without_address = false;
};

extern const LaunchForm kTesseraForm;
extern const LaunchForm kTorchrunForm;
extern const LaunchForm kOpenMpiForm;
extern const LaunchForm kSlurmForm;
// As kSlurmForm, with the number of tasks of the step; srun alone sets it.
extern const LaunchForm kSlurmStepForm;
extern const LaunchForm kHydraForm;
extern const LaunchForm kPmixForm;
extern const LaunchForm kTfDtensorForm;

// Values that replace a form's variables, where they are set.
struct LaunchOverrides {
  std::string coordinator = {};
  std::optional<int> client_id = {};
  std::optional<int> num_clients = {};
};

struct LaunchedClient {
  int client_id = 0;
  int num_clients = 1;
  // Empty where a form without an address is of several hosts, or of one client.
  std::string coordinator = {};
  std::optional<int> local_rank = {};
  std::optional<int> local_size = {};
  std::optional<bool> on_one_host = {};  // unset where the launcher does not say
};

// InvalidArgument for a variable that is missing, or out of its range.
StatusOr<LaunchedClient> read_form(const LaunchForm& form, const EnvironmentLookup& lookup,
                                   const LaunchOverrides& overrides);

// The address of a job that a form without one started on one host; none for one client, for
// clients on several hosts, and where the launcher does not say how many hosts there are. A batch
// script of Slurm has SLURM_PROCID too, but no SLURM_STEP_ variables.
std::optional<std::string> address_of_launch(const LaunchForm& form,
                                             const EnvironmentLookup& lookup);

// A number that the tasks of one step share. Tasks of other steps hardly ever have the same number
// modulo kNumPorts.
inline uint64_t slurm_launch_number(uint64_t job_id, uint64_t step_id) {
  return job_id + 257 * step_id;
}

inline bool is_set(const EnvironmentLookup& lookup, const char* name) {
  return lookup(name) != nullptr;
}
bool any_set(const EnvironmentLookup& lookup, const std::vector<const char*>& names);

// InvalidArgument, naming the variable, its text and the range.
StatusOr<int> read_number(const char* name, absl::string_view text, int64_t least, int64_t most);

}  // namespace tessera

#endif  // TESSERA_JOB_ENVIRONMENT_LAUNCH_FORM_H_
