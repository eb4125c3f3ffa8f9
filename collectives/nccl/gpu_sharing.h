// SPDX-License-Identifier: Apache-2.0
//
// Settings of NCCL where several processes share a GPU.
//
//   share_gpus_among_processes();              in each of them, before NCCL is loaded
//   StatusOr<...> nccl = nccl::open_api();     takes ranks of other processes on the same GPU
//
// NCCL refuses two ranks on one GPU where host and GPU are both equal. NCCL_HOSTID names the host,
// where it is set: with another value in each process every rank is on a host of its own. No two
// ranks can reach each other's memory then, and all bytes go through pinned memory and sockets of
// the loopback interface. Measurements in this form do not show NCCL's bandwidth.
//
// A process has one value, which NCCL reads once: its own ranks still need a GPU each.
#ifndef TESSERA_COLLECTIVES_NCCL_GPU_SHARING_H_
#define TESSERA_COLLECTIVES_NCCL_GPU_SHARING_H_

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::nccl {

struct NcclVariable {
  const char* name;
  std::string value;
  // Whether a value that is already set stays.
  bool is_default = true;
};

// The variables for a process with this number; `nonce` distinguishes processes with the same
// number, each in its own container.
std::vector<NcclVariable> gpu_sharing_variables(int64_t pid, uint64_t nonce);

// Sets them in the environment of this process, once for each process: a fork is another one. Like
// setenv(), not to be called while other threads read the environment.
void share_gpus_among_processes();

}  // namespace tessera::nccl

#endif  // TESSERA_COLLECTIVES_NCCL_GPU_SHARING_H_
