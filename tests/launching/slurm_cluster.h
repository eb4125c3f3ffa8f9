// SPDX-License-Identifier: Apache-2.0
//
// SlurmCluster: Slurm with one node, this host, for as long as the object lives.
//
//   if (const std::string why = SlurmCluster::why_not(); !why.empty()) GTEST_SKIP() << why;
//   const SlurmCluster cluster;
//   LauncherRun run = LauncherRun::program({"srun", "-n", "4", ...}, cluster.environment());
//
// Its three daemons (munged, slurmctld, slurmd; Debian's munge, slurmctld, slurmd, slurm-client)
// run as children of the test, on free ports, with all of their files in one folder.
#ifndef TESSERA_TESTS_LAUNCHING_SLURM_CLUSTER_H_
#define TESSERA_TESTS_LAUNCHING_SLURM_CLUSTER_H_

#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/environment/host.h"
#include "job/environment/port.h"
#include "job/testing/launcher_run.h"
#include "tests/support/matchers.h"

namespace tessera::testing {

class SlurmCluster {
 public:
  // The reason why Slurm cannot run here; empty if it can.
  static std::string why_not() {
    for (const char* path :
         {"/usr/sbin/munged", "/usr/sbin/slurmctld", "/usr/sbin/slurmd", "/usr/bin/srun"}) {
      if (access(path, X_OK) != 0) return absl::StrCat(path, " is not installed");
    }
    if (geteuid() != 0) return "slurmd needs root";
    std::string setgroups;
    std::ifstream("/proc/self/setgroups") >> setgroups;
    return setgroups == "deny" ? "slurmctld needs setgroups(), which is denied here" : "";
  }

  SlurmCluster() {
    // Not the test's own folder: the address of a socket has 107 bytes at most.
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    EXPECT_THAT(controller_port_.status(), IsOk());
    EXPECT_THAT(node_port_.status(), IsOk());
    write_files();
    munged_ = start({"/usr/sbin/munged", "--force", "--foreground", "--key-file=" + file("key"),
                     "--socket=" + file("munge"), "--pid-file=" + file("munged.pid"),
                     "--log-file=" + file("munged.log"), "--seed-file=" + file("seed")});
    await([this] { return access(file("munge").c_str(), F_OK) == 0; });
    controller_ = start({"/usr/sbin/slurmctld", "-D"});
    await([this] {
      LauncherRun ping = LauncherRun::program({"/usr/bin/scontrol", "ping"}, environment());
      return ping.wait() == 0;
    });
    node_ = start({"/usr/sbin/slurmd", "-D"});
  }

  SlurmCluster(const SlurmCluster&) = delete;
  ~SlurmCluster() {
    node_.reset();
    controller_.reset();
    munged_.reset();
    kill_steps();
    std::error_code error;
    std::filesystem::remove_all(folder_, error);
  }

  std::vector<std::string> environment() const { return {"SLURM_CONF=" + file("slurm.conf")}; }
  // The logs of the daemons, for a job that does not run.
  std::string logs() const {
    std::string all;
    for (const char* name : {"slurmctld.log", "slurmd.log"}) {
      std::ifstream log(file(name));
      for (std::string line; std::getline(log, line);) absl::StrAppend(&all, line, "\n");
    }
    return all;
  }

 private:
  std::string file(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

  std::unique_ptr<LauncherRun> start(const std::vector<std::string>& command) const {
    return std::unique_ptr<LauncherRun>(
        new LauncherRun(LauncherRun::program(command, environment())));
  }

  // Kills the process of a step. It is no child of slurmd, outlives it, and continues to look for
  // it. Its environment, which names the folder of this object, identifies it.
  void kill_steps() const {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
      int pid = 0;
      if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
      std::ifstream file(entry.path() / "environ");
      for (std::string variable; std::getline(file, variable, '\0');) {
        if (variable == environment()[0]) kill(pid, SIGKILL);
      }
    }
  }

  // The daemons do not report when they are ready: the condition is polled.
  template <class Condition>
  static void await(const Condition& is_ready) {
    const absl::Time deadline = steady_now() + kTestTimeout;
    while (!is_ready()) {
      ASSERT_LT(steady_now(), deadline);
      poll(nullptr, 0, 20);
    }
  }

  void write_files() const {
    std::ofstream(file("key")) << random_text(1024);
    chmod(file("key").c_str(), 0400);
    mkdir(file("state").c_str(), 0700);
    mkdir(file("spool").c_str(), 0755);
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    const std::string host = std::string(name).substr(0, std::string(name).find('.'));
    std::ofstream(file("slurm.conf"))
        << "ClusterName=test\nSlurmctldHost=" << host
        << "(127.0.0.1)\nSlurmctldPort=" << controller_port_->port()
        << "\nSlurmdPort=" << node_port_->port()
        << "\nAuthType=auth/munge\nAuthInfo=socket=" << file("munge")
        << "\nCredType=cred/munge\nSlurmUser=root\nSlurmdUser=root\nStateSaveLocation="
        << file("state") << "\nSlurmdSpoolDir=" << file("spool")
        << "\nSlurmctldPidFile=" << file("slurmctld.pid")
        << "\nSlurmdPidFile=" << file("slurmd.pid")
        << "\nSlurmctldLogFile=" << file("slurmctld.log")
        << "\nSlurmdLogFile=" << file("slurmd.log")
        << "\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSwitchType=switch/none\n"
           "MpiDefault=none\nJobAcctGatherType=jobacct_gather/none\n"
           "AccountingStorageType=accounting_storage/none\nSelectType=select/cons_tres\n"
           "SelectTypeParameters=CR_Core\nSlurmdParameters=config_overrides\n"
           "NodeName="
        << host << " NodeAddr=127.0.0.1 CPUs=16 State=UNKNOWN\nPartitionName=all Nodes=" << host
        << " Default=YES MaxTime=INFINITE State=UP\n";
  }

  static std::string random_text(size_t size) {
    std::string text;
    while (text.size() < size) text += random_token();
    return text;
  }

  std::string folder_ = "/tmp/tessera-slurm-XXXXXX";
  const StatusOr<ReservedPort> controller_port_ = ReservedPort::create();
  const StatusOr<ReservedPort> node_port_ = ReservedPort::create();
  std::unique_ptr<LauncherRun> munged_;  // destroyed last
  std::unique_ptr<LauncherRun> controller_;
  std::unique_ptr<LauncherRun> node_;
};

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_LAUNCHING_SLURM_CLUSTER_H_
