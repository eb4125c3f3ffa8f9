// SPDX-License-Identifier: Apache-2.0
//
// The cores and memory that this process may use, where control groups (a container's, a
// scheduler's) give it less than the machine has.
//
//   usable_cores()             cores of sched_getaffinity, or less where a CPU quota says so
//   available_memory_bytes()   MemAvailable, or less where a memory limit says so
//
// Reads both versions of control groups: cpu.max and memory.max of version 2, cpu.cfs_quota_us and
// memory.limit_in_bytes of version 1. The tightest limit counts, of the process's group and all
// groups above it. A limit that cannot be read does not count. Thread-safe.
#ifndef TESSERA_BASE_MACHINE_H_
#define TESSERA_BASE_MACHINE_H_

#include <cstdint>
#include <string>

namespace tessera {

// The files of the system; tests write their own.
struct MachineFiles {
  std::string cgroups = "/sys/fs/cgroup";
  std::string membership = "/proc/self/cgroup";
  std::string meminfo = "/proc/meminfo";
};

// At least 1. A quota of one and a half cores is 1 core: a second thread would be throttled.
int usable_cores(const MachineFiles& files = {});

// The memory that can still be taken before the kernel begins to kill. Page cache counts as
// available: the kernel drops it first.
uint64_t available_memory_bytes(const MachineFiles& files = {});

}  // namespace tessera

#endif  // TESSERA_BASE_MACHINE_H_
