// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/gpu_sharing.h"

#include <unistd.h>

#include <cstdlib>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tessera::nccl {
namespace {

constexpr char kHostId[] = "NCCL_HOSTID";

std::string host_id_prefix(int64_t pid) { return absl::StrCat("tessera-", pid, "-"); }

}  // namespace

std::vector<NcclVariable> gpu_sharing_variables(int64_t pid, uint64_t nonce) {
  return {
      {kHostId, absl::StrCat(host_id_prefix(pid), absl::Hex(nonce)), /*is_default=*/false},
      // Sockets of the loopback interface, which exists without any network.
      {"NCCL_NET", "Socket"},
      {"NCCL_IB_DISABLE", "1"},
      {"NCCL_SOCKET_IFNAME", "lo"},
      // These cannot work between "hosts" that are one machine, and must not be tried.
      {"NCCL_P2P_DISABLE", "1"},
      {"NCCL_SHM_DISABLE", "1"},
      {"NCCL_NVLS_ENABLE", "0"},
      {"NCCL_MNNVL_ENABLE", "0"},
      // Memory of the host that is bound to a NUMA node, which containers often refuse.
      {"NCCL_CUMEM_HOST_ENABLE", "0"},
      // Libraries that a site may have installed beside NCCL.
      {"NCCL_NET_PLUGIN", "none"},
      {"NCCL_TUNER_PLUGIN", "none"},
      // Kernels of several processes take turns on the GPU: few large steps, not many small ones,
      // and one block, so that a kernel that waits leaves room and a communicator pins little.
      {"NCCL_ALGO", "Ring"},
      {"NCCL_PROTO", "Simple"},
      {"NCCL_MAX_CTAS", "1"},
      // All processes would listen on one port.
      {"NCCL_RAS_ENABLE", "0"},
  };
}

void share_gpus_among_processes() {
  const char* const host_id = std::getenv(kHostId);
  // NCCL may have read it already.
  if (host_id != nullptr && absl::StartsWith(host_id, host_id_prefix(getpid()))) return;
  std::random_device random;
  const uint64_t nonce = uint64_t{random()} << 32 | random();
  for (const NcclVariable& variable : gpu_sharing_variables(getpid(), nonce)) {
    setenv(variable.name, variable.value.c_str(), variable.is_default ? 0 : 1);
  }
}

}  // namespace tessera::nccl
