// SPDX-License-Identifier: Apache-2.0
#include "servers/testing/test_cluster.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/host_array.h"
#include "gtest/gtest.h"

namespace tessera::distribute::testing {
namespace {

constexpr char kProgram[] = "servers/testing/task_program";

}  // namespace

TestCluster::TestCluster(int num_workers, int num_ps) {
  for (const auto& [job, num_tasks] :
       {std::pair("chief", 1), std::pair("worker", num_workers), std::pair("ps", num_ps)}) {
    for (int i = 0; i < num_tasks; ++i) {
      StatusOr<ReservedPort> port = ReservedPort::create();
      EXPECT_TRUE(port.ok()) << port.status();
      jobs_[job].push_back(absl::StrCat("127.0.0.1:", port->port()));
      ports_.push_back(*std::move(port));
    }
  }
}

TestCluster::~TestCluster() {
  for (auto& [name, task] : tasks_) {
    if (task.pid == 0) continue;
    ::kill(task.pid, SIGKILL);
    waitpid(task.pid, nullptr, 0);
  }
}

void TestCluster::start_all() {
  for (const char* const job : {"ps", "worker"}) {
    for (int i = 0; i < static_cast<int>(jobs_[job].size()); ++i) start(job, i);
  }
}

void TestCluster::start(const std::string& job, int task, const std::string& function) {
  std::vector<std::string> jobs;
  for (const auto& [name, addresses] : jobs_) {
    jobs.push_back(absl::StrCat("\"", name, "\": [\"", absl::StrJoin(addresses, "\", \""), "\"]"));
  }
  const std::string config =
      absl::StrCat("TF_CONFIG={\"cluster\": {", absl::StrJoin(jobs, ", "),
                   "}, \"task\": {\"type\": \"", job, "\", \"index\": ", task, "}}");
  Task& started = tasks_[{job, task}];
  started.result =
      absl::StrCat(std::getenv("TEST_TMPDIR"), "/", getpid(), "-", num_started_++, ".status");
  std::vector<std::string> arguments = {kProgram, started.result};
  if (!function.empty()) arguments.push_back(function);
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  std::vector<char*> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) variables.push_back(*variable);
  variables.push_back(const_cast<char*>(config.c_str()));
  variables.push_back(nullptr);
  started.pid = fork();
  if (started.pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execve(kProgram, pointers.data(), variables.data());
    _exit(99);
  }
}

void TestCluster::signal(const std::string& job, int task, int signal) {
  const pid_t pid = tasks_[{job, task}].pid;
  if (pid != 0) ::kill(pid, signal);
}

void TestCluster::kill(const std::string& job, int task) {
  pid_t& pid = tasks_[{job, task}].pid;
  if (pid == 0) return;
  ::kill(pid, SIGKILL);
  waitpid(std::exchange(pid, 0), nullptr, 0);
}

Status TestCluster::wait(const std::string& job, int task, absl::Duration timeout) {
  Task& waited = tasks_[{job, task}];
  const absl::Time deadline = steady_now() + timeout;
  int ended = 0;
  while (waitpid(waited.pid, &ended, WNOHANG) == 0) {
    if (steady_now() >= deadline) return absl::DeadlineExceededError("the task has not ended");
    absl::SleepFor(absl::Milliseconds(5));  // sleep: polls for the end of a process
  }
  waited.pid = 0;
  if (WIFSIGNALED(ended)) return absl::AbortedError(absl::StrCat("signal ", WTERMSIG(ended)));
  std::ifstream file(waited.result);
  int code = -1;
  file >> code;
  file.get();
  return Status(static_cast<absl::StatusCode>(code),
                std::string(std::istreambuf_iterator<char>(file), {}));
}

cluster::Cluster TestCluster::as(const std::string& job, int task) const {
  StatusOr<cluster::ClusterSpec> spec = cluster::ClusterSpec::create(jobs_);
  EXPECT_TRUE(spec.ok()) << spec.status();
  StatusOr<cluster::Cluster> result = cluster::simple(*spec, job, task);
  EXPECT_TRUE(result.ok()) << result.status();
  return *result;
}

std::string TestCluster::address(const std::string& job, int task) const {
  return jobs_.at(job)[task];
}

int64_t TestCluster::peak_memory(const std::string& job, int task) const {
  std::ifstream status(absl::StrCat("/proc/", tasks_.at({job, task}).pid, "/status"));
  for (std::string word; status >> word;) {
    int64_t kib = 0;
    if (word == "VmHWM:" && status >> kib) return kib << 10;
  }
  ADD_FAILURE() << job << " " << task << " has no VmHWM";
  return 0;
}

StatusOr<float> result_of(const RemoteValue& value) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<HostArray> results, value.fetch());
  if (results.empty() || results[0].dtype != DType::kFloat32) {
    return absl::NotFoundError("the closure has no f32 result");
  }
  return results[0].view<float>()[0];
}

StatusOr<Read> read_of(const RemoteValue& value) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<HostArray> results, value.fetch());
  Read read = {.worker = static_cast<int>(results[0].view<float>()[0])};
  for (size_t i = 1; i < results.size(); ++i) {
    const absl::Span<const int64_t> batch = results[i].view<int64_t>();
    read.batches.emplace_back(batch.begin(), batch.end());
  }
  return read;
}

StatusOr<std::vector<float>> value_of(ClusterCoordinator& coordinator, const RemoteVariable& v) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<HostArray> results,
                           coordinator.schedule("pull", {v}).fetch());
  const absl::Span<const float> elements = results[0].view<float>();
  return std::vector<float>(elements.begin(), elements.end());
}

}  // namespace tessera::distribute::testing
