// SPDX-License-Identifier: Apache-2.0
//
// Jobs as containers run them: with little /dev/shm or none, without ptrace and what goes with it,
// under a memory limit, with a CPU quota. The limits are real where this user may set them up (a
// mount namespace, a system call filter), else the case is skipped and says why.
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/machine.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "dtensor/spawn.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/clients.h"
#include "tests/support/forked.h"
#include "tests/support/job_forms.h"
#include "tests/support/leaks.h"
#include "tests/support/matchers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;

// ---- Limits read from control groups.

struct File {
  const char* path;  // below /sys/fs/cgroup, except "membership" and "meminfo"
  const char* text;
};

struct MachineCase {
  const char* name;
  std::vector<File> files;
  int cores;                 // on a machine with many; 0: all of them
  uint64_t available_bytes;  // of the meminfo below
};

constexpr uint64_t kMemAvailable = uint64_t{1000} * 1024;
constexpr const char* kMeminfo = "MemTotal: 2000 kB\nMemAvailable: 1000 kB\n";

// clang-format off
const MachineCase kMachineCases[] = {
    {"nothing_to_read", {}, 0, kMemAvailable},
    {"version_2_without_limits", {{"membership", "0::/\n"}, {"cpu.max", "max 100000\n"}, {"memory.max", "max\n"}, {"memory.current", "5000\n"}}, 0, kMemAvailable},
    {"quota_of_one_core", {{"membership", "0::/\n"}, {"cpu.max", "100000 100000\n"}}, 1, kMemAvailable},
    {"quota_of_one_and_a_half", {{"membership", "0::/\n"}, {"cpu.max", "150000 100000\n"}}, 1, kMemAvailable},
    {"quota_below_one", {{"membership", "0::/\n"}, {"cpu.max", "20000 100000\n"}}, 1, kMemAvailable},
    {"quota_beyond_the_cores", {{"membership", "0::/\n"}, {"cpu.max", "999900000 100000\n"}}, 0, kMemAvailable},
    {"quota_of_a_group_above", {{"membership", "0::/a/b\n"}, {"a/cpu.max", "100000 100000\n"}, {"a/b/cpu.max", "max 100000\n"}}, 1, kMemAvailable},
    {"container_sees_its_group_as_root", {{"membership", "0::/docker/1f\n"}, {"cpu.max", "100000 100000\n"}}, 1, kMemAvailable},
    {"hybrid_hierarchy", {{"membership", "3:cpu,cpuacct:/x\n0::/\n"}, {"unified/cpu.max", "100000 100000\n"}}, 1, kMemAvailable},
    {"version_1_quota", {{"membership", "3:cpu,cpuacct:/x\n"}, {"cpu,cpuacct/x/cpu.cfs_quota_us", "100000\n"}, {"cpu,cpuacct/x/cpu.cfs_period_us", "100000\n"}}, 1, kMemAvailable},
    {"version_1_no_quota", {{"membership", "3:cpu:/x\n"}, {"cpu/x/cpu.cfs_quota_us", "-1\n"}, {"cpu/x/cpu.cfs_period_us", "100000\n"}}, 0, kMemAvailable},
    {"memory_limit", {{"membership", "0::/\n"}, {"memory.max", "9000\n"}, {"memory.current", "5000\n"}}, 0, 4000},
    {"more_used_than_allowed", {{"membership", "0::/\n"}, {"memory.max", "9000\n"}, {"memory.current", "9999\n"}}, 0, 0},
    {"tightest_of_two_groups", {{"membership", "0::/a\n"}, {"memory.max", "9000\n"}, {"memory.current", "6000\n"}, {"a/memory.max", "7000\n"}, {"a/memory.current", "5000\n"}}, 0, 2000},
    {"page_cache_is_available", {{"membership", "0::/\n"}, {"memory.max", "9000\n"}, {"memory.current", "8000\n"}, {"memory.stat", "anon 2000\nfile 6000\ninactive_file 3000\nactive_file 1000\n"}}, 0, 5000},
    {"version_1_memory", {{"membership", "4:memory:/m\n"}, {"memory/m/memory.limit_in_bytes", "9000\n"}, {"memory/m/memory.usage_in_bytes", "8000\n"}, {"memory/m/memory.stat", "inactive_file 1\ntotal_inactive_file 1500\ntotal_active_file 500\n"}}, 0, 3000},
    {"version_1_without_limit", {{"membership", "4:memory:/\n"}, {"memory/memory.limit_in_bytes", "9223372036854771712\n"}, {"memory/memory.usage_in_bytes", "8000\n"}}, 0, kMemAvailable},
    {"rubbish", {{"membership", "what\n::\n0::\n"}, {"cpu.max", "many\n"}, {"memory.max", "-7\n"}, {"memory.current", "1\n"}}, 0, kMemAvailable},
};
// clang-format on

void write_file(const std::string& path, const std::string& text) {
  for (size_t at = path.find('/', 1); at != path.npos; at = path.find('/', at + 1)) {
    mkdir(path.substr(0, at).c_str(), 0777);
  }
  std::ofstream(path) << text;
}

TEST(MachineTest, ControlGroupsLimitCoresAndMemory) {
  const int all_cores = usable_cores({"/none", "/none", "/none"});
  for (const MachineCase& c : kMachineCases) {
    const std::string folder = absl::StrCat(::testing::TempDir(), "/machine/", c.name);
    const MachineFiles files = {folder, folder + "/membership", folder + "/meminfo"};
    write_file(files.meminfo, kMeminfo);
    for (const File& file : c.files) write_file(absl::StrCat(folder, "/", file.path), file.text);
    EXPECT_EQ(usable_cores(files), c.cores == 0 ? all_cores : c.cores) << c.name;
    EXPECT_EQ(available_memory_bytes(files), c.available_bytes) << c.name;
  }
}

TEST(MachineTest, AffinityLimitsCores) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(usable_cores(), 1);
  sched_setaffinity(0, sizeof before, &before);
}

// ---- Jobs.

// Runs `body` in a child that has gone through `enter`. Unimplemented where `enter` did not work.
Status run_limited(const std::function<Status()>& enter, const std::function<Status()>& body) {
  return run_isolated(absl::Seconds(100), [&]() -> Status {
    TESSERA_RETURN_IF_ERROR(enter());
    return body();
  });
}

#define TESSERA_EXPECT_OK_OR_SKIP(expression)                              \
  do {                                                                     \
    const Status status_ = (expression);                                   \
    if (absl::IsUnimplemented(status_)) GTEST_SKIP() << status_.message(); \
    EXPECT_THAT(status_, IsOk());                                          \
  } while (false)

Status refused(absl::string_view what) {
  return absl::UnimplementedError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// Mounts of this process alone, as root of a user namespace where it is not root already.
Status own_mounts() {
  const int flags = geteuid() == 0 ? CLONE_NEWNS : CLONE_NEWNS | CLONE_NEWUSER;
  if (unshare(flags) != 0) return refused("no mount namespace of one's own");
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return refused("mounts stay shared");
  }
  return absl::OkStatus();
}

Status mount_tmpfs(const char* folder, unsigned long flags, const char* options) {
  if (mount("tmpfs", folder, "tmpfs", flags, options) != 0) {
    return refused(absl::StrCat("cannot mount on ", folder));
  }
  return absl::OkStatus();
}

// Every byte goes between all clients, in tensors and in memory that is copied through arenas.
Status move_much(int num_clients, int64_t mebibytes_per_client) {
  const JobSpec spec = {.setting = Setting::kProcesses, .num_clients = num_clients};
  const int64_t elements = mebibytes_per_client << 18;
  // A child of a child of the test: it has the limits of its parent.
  return run_clients(spec, [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh,
                             live_mesh(client, absl::StrCat("{x=", num_clients, "}")));
    const int64_t rows = 64;
    const DTensor x =
        ones<float>({rows, elements * num_clients / rows}, Layout::parse(mesh, "[x, -]"));
    TESSERA_RETURN_IF_ERROR(relayout(x, Layout::parse(mesh, "[-, x]")).await());
    std::vector<int> all;
    for (const Device& device : client.devices()) all.push_back(device.id);
    TESSERA_ASSIGN_OR_RETURN(const Group group, client.group(all));
    std::vector<float> data(elements, 1.0f);
    TESSERA_RETURN_IF_ERROR(
        group.all_reduce<float>(data, absl::MakeSpan(data), ReduceOp::kSum).await());
    TESSERA_REQUIRE(data == std::vector<float>(elements, static_cast<float>(num_clients)));
    return mesh.barrier("end", absl::Seconds(60));
  });
}

// 3 clients of 32 MiB in three copies each: more than four times the 64 MB.
TEST(ContainerTest, WorksWithLittleSharedMemoryFilesystem) {
  TESSERA_EXPECT_OK_OR_SKIP(run_limited(
      []() -> Status {
        TESSERA_RETURN_IF_ERROR(own_mounts());
        return mount_tmpfs("/dev/shm", 0, "size=64m");
      },
      [] { return move_much(3, 32); }));
}

TEST(ContainerTest, WorksWithoutSharedMemoryFilesystem) {
  TESSERA_EXPECT_OK_OR_SKIP(run_limited(
      []() -> Status {
        TESSERA_RETURN_IF_ERROR(own_mounts());
        TESSERA_RETURN_IF_ERROR(mount_tmpfs("/dev/shm", MS_RDONLY, "size=4k"));
        TESSERA_REQUIRE(shm_open("/tessera-probe", O_CREAT | O_RDWR, 0600) < 0,
                        "the limit does not limit");
        return absl::OkStatus();
      },
      [] { return move_much(2, 4); }));
}

// ---- Without ptrace.

// From now on the kernel treats these calls of this process and its children in this way.
Status forbid(absl::Span<const uint32_t> calls, uint32_t action) {
  std::vector<sock_filter> filter = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const uint32_t number : calls) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1));
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, action));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program = {static_cast<unsigned short>(filter.size()), filter.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    return refused("no system call filter");
  }
  return absl::OkStatus();
}

// A process of this family that asks for the memory of another one is killed.
Status forbid_ptrace() {
  constexpr uint32_t kForbidden[] = {SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev,
                                     SYS_pidfd_getfd, SYS_kcmp};
  return forbid(kForbidden, SECCOMP_RET_KILL_PROCESS);
}

TEST(ContainerTest, WorksWithoutPtrace) {
  TESSERA_EXPECT_OK_OR_SKIP(run_limited(forbid_ptrace, [] { return move_much(2, 4); }));
  // The filter works: ptrace() ends the process.
  EXPECT_THAT(run_limited(forbid_ptrace,
                          []() -> Status {
                            ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
                            return absl::OkStatus();
                          }),
              StatusIs(StatusCode::kAborted));
}

// ---- Under kernels and sandboxes that lack what Tessera needs.

TEST(ContainerTest, ASystemCallThatTheSystemRefusesIsNamed) {
  const auto connect = [] { return Client::connect({}).status(); };
  const auto spawn_two = [] { return spawn(2, [](const Client&) { return absl::OkStatus(); }); };
  const struct {
    uint32_t call;
    std::function<Status()> body;
    const char* text;
  } cases[] = {
      {SYS_memfd_create, connect,
       "; Tessera makes the memory that clients of a host share by it; use Linux 3.17 or later"},
      {SYS_pidfd_open, spawn_two,
       "; Tessera waits for the end of a process by it; use Linux 5.3 or later"},
  };
  for (const int error : {ENOSYS, EPERM}) {
    for (const auto& row : cases) {
      TESSERA_EXPECT_OK_OR_SKIP(
          run_limited([&] { return forbid({row.call}, SECCOMP_RET_ERRNO | error); },
                      [&] {
                        return expect_error(
                            row.body(), StatusCode::kUnimplemented,
                            {"this system refuses the system call ", std::strerror(error), row.text,
                             ", and a sandbox (seccomp, gVisor) that allows the call"});
                      }));
    }
  }
}

// ---- Under limits of control groups, whose files a mount in their place brings.

// As if this process ran in a container that sees its group as the root.
Status pretend_limits(const std::vector<File>& files) {
  std::ifstream membership("/proc/self/cgroup");
  bool has_version_2 = false;
  for (std::string line; std::getline(membership, line);)
    has_version_2 |= line.rfind("0::", 0) == 0;
  if (!has_version_2) return absl::UnimplementedError("a system without control groups, version 2");
  TESSERA_RETURN_IF_ERROR(own_mounts());
  TESSERA_RETURN_IF_ERROR(mount_tmpfs("/sys/fs/cgroup", 0, "size=1m"));
  for (const File& file : files) write_file(absl::StrCat("/sys/fs/cgroup/", file.path), file.text);
  return absl::OkStatus();
}

TEST(ContainerTest, AMemoryLimitIsAnErrorBeforeMemoryIsTouched) {
  const std::vector<File> files = {{"memory.max", "100000000\n"}, {"memory.current", "20000000\n"}};
  TESSERA_EXPECT_OK_OR_SKIP(run_limited(
      [&] { return pretend_limits(files); },
      [] {
        return run_clients(
            {.setting = Setting::kProcesses, .num_clients = 2}, [](Client& client) -> Status {
              TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2}"));
              const int64_t shared_kib = current_holdings().shared_kib;
              const DTensor large = zeros<float>({2, 50'000'000}, Layout::parse(mesh, "[x, -]"));
              TESSERA_RETURN_IF_ERROR(
                  expect_error(large.await(), StatusCode::kResourceExhausted,
                               {"the system has 80000000 bytes", "200000000 bytes"}));
              client.sync_devices().IgnoreError();
              TESSERA_REQUIRE(current_holdings().shared_kib < shared_kib + 1000);
              // Tensors that fit still work.
              const DTensor small = iota<float>({2, 1000}, Layout::parse(mesh, "[x, -]"));
              return expect_iota<float>(relayout(small, Layout::parse(mesh, "[-, x]")));
            });
      }));
}

TEST(ContainerTest, ACpuQuotaIsSeenAndWorks) {
  TESSERA_EXPECT_OK_OR_SKIP(run_limited(
      [] {
        return pretend_limits({{"cpu.max", "100000 100000\n"}});
      },
      []() -> Status {
        TESSERA_REQUIRE(usable_cores() == 1, usable_cores());
        return move_much(2, 1);
      }));
}

}  // namespace
}  // namespace tessera::testing
