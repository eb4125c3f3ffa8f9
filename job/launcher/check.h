// SPDX-License-Identifier: Apache-2.0
//
// tessera_run --check: the resources that a client of a job would have on its host, and whether it
// reaches the other clients.
//
//   host host-a: 64 cores, 503000 MiB of memory, 257000 MiB of /dev/shm, 1024 descriptors, 0 GPUs
//   transports: shared memory inside the host, UCX 1.13.1
//   interfaces: lo (127.0.0.1), eth0 (10.1.0.7), docker0 (172.17.0.1)
//   uses interface eth0 (10.1.0.7)
//   a message reached client 1 (host-b, pid 4711) at 10.1.0.8:41235
//   1 of 1 messages have come
//   no finding                               or: found: ... and what to do, for each
#ifndef TESSERA_JOB_LAUNCHER_CHECK_H_
#define TESSERA_JOB_LAUNCHER_CHECK_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "job/environment/interface.h"

namespace tessera {

// The resources that this process finds on its host.
struct HostFacts {
  // Within the limits of its container or scheduler.
  int num_cores = 0;
  uint64_t memory_bytes = 0;  // available
  int64_t shm_bytes = 0;      // free in /dev/shm
  int64_t num_descriptors = 0;
  int num_gpus = 0;  // device files of NVIDIA's driver
  // Empty: libucp.so.0, libnccl.so.2 cannot be loaded.
  std::string ucx_version = {};
  std::string nccl_version = {};
  StatusOr<std::vector<NetworkInterface>> interfaces = absl::UnknownError("not asked");
};
HostFacts find_host_facts();

// The first three lines above, without the interfaces where they are not known.
std::string describe(const HostFacts& facts, absl::string_view host);

// The problems for a job on one host, or on several: a sentence for each, with the remedy. Empty:
// none.
std::vector<std::string> judge(const HostFacts& facts, bool has_several_hosts);

// The messages to one client.
struct MessagesHere {
  int num_sent = 0;  // which the senders report as sent
  int num_received = 0;
  std::vector<std::string> silent = {};  // clients that report that they do not reach this one
};
std::vector<std::string> judge(const MessagesHere& messages);

// Writes the lines above to `out`, as the client that the environment names, and sends a message to
// every other client, which does the same. Returns when every client has written its findings: 0,
// or 1 where there is a finding.
int check_host(std::ostream& out);

}  // namespace tessera

#endif  // TESSERA_JOB_LAUNCHER_CHECK_H_
