// SPDX-License-Identifier: Apache-2.0
//
// tessera_run --check: what a client of a job would find on its host, and whether it reaches the
// others.
//
//   host host-a: 64 cores, 503 GiB of memory, 257000 MiB of /dev/shm, 1024 descriptors, 0 GPUs
//   UCX 1.13.1
//   interface eth0 (10.1.0.7) of lo (127.0.0.1), eth0 (10.1.0.7), docker0 (172.17.0.1)
//   a message reached client 1 (host-b, pid 4711) at 10.1.0.8:41235
//   1 of 1 messages have come
//   no finding                               or: found: ... and what to do, for each
#ifndef TESSERA_JOB_CHECK_H_
#define TESSERA_JOB_CHECK_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace tessera {

// What this process finds of its host.
struct HostFacts {
  int num_cores = 0;  // that it may run on
  int64_t memory_bytes = 0;
  int64_t shm_bytes = 0;  // free in /dev/shm
  int64_t num_descriptors = 0;
  int num_gpus = 0;         // device files of NVIDIA's driver
  std::string ucx_version;  // empty: libucp.so.0 cannot be loaded
};
HostFacts find_host_facts();

// What is wrong for a job of so many clients on one host, or on several: a sentence each, with what
// to do. Empty: nothing.
std::vector<std::string> judge(const HostFacts& facts, bool has_several_hosts);

// Writes all that to `out`, as the client that the environment names, and sends a message to every
// other client, which does the same. Returns 0, or 1 where there is a finding.
int check_host(std::ostream& out);

}  // namespace tessera

#endif  // TESSERA_JOB_CHECK_H_
