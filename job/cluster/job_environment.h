// SPDX-License-Identifier: Apache-2.0
//
// Determines the job of this process from the program's options and the environment.
//
// The first form that is set wins, and must be complete:
//   tessera_run   TESSERA_COORDINATOR, TESSERA_CLIENT_ID, TESSERA_NUM_CLIENTS
//   torchrun      MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE
//   Open MPI      OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, with TESSERA_COORDINATOR
//   Slurm         SLURM_PROCID, SLURM_NTASKS, with TESSERA_COORDINATOR
//   TF DTensor    DTENSOR_CLIENT_ID, DTENSOR_NUM_CLIENTS, DTENSOR_JOBS ("host:port,...": the
//                 first is the coordinator)
//   Hydra         PMI_RANK, PMI_SIZE, with TESSERA_COORDINATOR
//   TF_CONFIG     tasks of jobs chief and worker; a ps is FailedPrecondition, an evaluator a job of
//                 one client
// cluster.h has resolvers that a program calls by itself, also for these forms.
//
// If no form is set, this process is a job of one client. Variables beside the forms:
// - TESSERA_HOSTED_COORDINATOR is an address at which a process that is no client serves
//   (tessera_run or a user of tessera_coordinator sets it). If it is the address of the job, client
//   0 does not host the coordinator, and TESSERA_COORDINATOR_RELAY is the relay of this host, if
//   there is one.
// - TESSERA_LOCAL_DEVICES, TESSERA_TOKEN and TESSERA_SHARE_GPUS are read in every form, and so are
//   the times TESSERA_HEARTBEAT_INTERVAL and TESSERA_COLLECTIVE_TIMEOUT (read_job_times()).
//
// On one host mpirun and srun need no TESSERA_COORDINATOR: the address is 127.0.0.1 and a port that
// is made from the id of their job. On several hosts, and where the launcher does not say on how
// many, each process without TESSERA_COORDINATOR is a job of one client: the processes of an MPI or
// Slurm job need not be one Tessera job.
//
// If a program gives address, id and number itself (JobOverrides), no form is read, and no name of
// a job is taken from a launcher: clients of two launches may then form one job.
//
// torchrun with TORCHELASTIC_USE_AGENT_STORE=True listens on MASTER_PORT itself: the coordinator
// then has MASTER_PORT + 1.
#ifndef TESSERA_JOB_CLUSTER_JOB_ENVIRONMENT_H_
#define TESSERA_JOB_CLUSTER_JOB_ENVIRONMENT_H_

#include <optional>
#include <string>

#include "base/status.h"
#include "job/environment/environment.h"
#include "job/environment/environment_lookup.h"

namespace tessera {

// Values from the program, which take precedence over the environment.
struct JobOverrides {
  std::string coordinator = {};
  std::optional<int> client_id = {};
  std::optional<int> num_clients = {};
  int num_local_devices = 0;
  // Where neither the program nor the environment says how many.
  int default_local_devices = 1;
  std::string token = {};
  std::optional<bool> share_gpus = {};
  std::optional<bool> coordinator_is_hosted = {};
};

// InvalidArgument for an incomplete form, naming the variable that is missing; for a value out of
// its range, naming the variable, the value and the range.
StatusOr<JobEnvironment> read_job_environment(const JobOverrides& overrides,
                                              const EnvironmentLookup& lookup);
// From the environment of this process.
StatusOr<JobEnvironment> read_job_environment(const JobOverrides& overrides);

}  // namespace tessera

#endif  // TESSERA_JOB_CLUSTER_JOB_ENVIRONMENT_H_
