// SPDX-License-Identifier: Apache-2.0
#include "tests/support/one_job.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "gtest/gtest.h"
#include "job/environment/host.h"
#include "job/environment/port.h"
#include "tests/support/gpu.h"

namespace tessera::testing {
namespace {

// How long the others may take after one client has failed; the end of all clients.
constexpr absl::Duration kGrace = absl::Seconds(20);
constexpr absl::Duration kEndLimit = absl::Seconds(60);

// The byte that tells clients: the next body may begin.
constexpr char kGoOn = 'g';

struct ClientProcess {
  pid_t pid = -1;
  int reports = -1;   // read end of the test program
  int commands = -1;  // write end of it
};

class OneJob : public ::testing::Environment {
 public:
  // "8x1"; null where the text is none.
  static OneJob* create(const std::string& text) {
    const std::vector<std::string> parts = absl::StrSplit(text, 'x');
    auto* const job = new OneJob;
    if (parts.size() == 2 && absl::SimpleAtoi(parts[0], &job->num_clients_) &&
        absl::SimpleAtoi(parts[1], &job->devices_per_client_)) {
      return job;
    }
    std::fprintf(stderr, "TESSERA_TEST_ONE_JOB is \"%s\"; give clients and devices, as in 8x1\n",
                 text.c_str());
    std::exit(2);
  }

  bool serves(const JobSpec& spec) const {
    return !is_over_ && spec.setting == Setting::kProcesses && spec.num_clients == num_clients_ &&
           spec.devices_per_client == devices_per_client_;
  }

  bool is_client() const { return id_ >= 0; }

  void SetUp() override {
    // Later calls in the clients get the answer without a process that used CUDA.
    if (is_test_gpu_asked_for()) test_gpu_with_nccl().IgnoreError();
    // Bodies draw by chance what all clients must have alike.
    setenv("TESSERA_TEST_SEED", absl::StrCat(std::random_device()()).c_str(), /*overwrite=*/0);
    StatusOr<ReservedPort> port = ReservedPort::create();
    ASSERT_TRUE(port.ok()) << port.status();
    port_.emplace(*std::move(port));
    token_ = random_token();
    for (int id = 0; id < num_clients_ && id_ < 0; ++id) fork_client(id);
  }

  void TearDown() override {
    if (id_ >= 0) {
      const Status status = client_.has_value() ? client_->shutdown() : absl::OkStatus();
      report(status);
      _exit(0);
    }
    if (is_over_) return;
    const Status status = collect(kEndLimit);
    EXPECT_TRUE(status.ok()) << status;
    end();
  }

  Status run(const JobSpec& spec, const ClientBody& body) {
    if (id_ >= 0) return run_as_client(spec, body);
    const Status status = collect(spec.deadline);
    if (!status.ok()) {
      end();
      return status;
    }
    for (const ClientProcess& client : clients_) (void)!write(client.commands, &kGoOn, 1);
    return status;
  }

 private:
  void fork_client(int id) {
    int reports[2];
    int commands[2];
    if (pipe2(reports, O_CLOEXEC) != 0 || pipe2(commands, O_CLOEXEC) != 0) std::abort();
    std::fflush(nullptr);
    const pid_t pid = fork();
    if (pid != 0) {
      close(reports[1]);
      close(commands[0]);
      clients_.push_back({pid, reports[0], commands[1]});
      return;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0);
    for (const ClientProcess& other : clients_) {
      close(other.reports);
      close(other.commands);
    }
    id_ = id;
    own_ = {getpid(), reports[1], commands[0]};
    if (std::freopen("/dev/null", "w", stdout) == nullptr) std::abort();
  }

  // ---- In a client.

  Status run_as_client(const JobSpec& spec, const ClientBody& body) {
    Status status;
    if (!client_.has_value()) status = connect(spec);
    if (status.ok()) {
      Client client = *client_;
      status = body(client);
      // Errors made on purpose must not reach the next body.
      client.sync_devices().IgnoreError();
    }
    report(status);
    char command = 0;
    if (read(own_.commands, &command, 1) != 1 || command != kGoOn) _exit(0);
    return absl::OkStatus();
  }

  Status connect(const JobSpec& spec) {
    ClientOptions options = spec.options;
    options.coordinator = absl::StrCat("127.0.0.1:", port_->port());
    options.client_id = id_;
    options.num_clients = num_clients_;
    options.num_local_devices = devices_per_client_;
    options.token = token_;
    TESSERA_ASSIGN_OR_RETURN(client_, Client::connect(options));
    return absl::OkStatus();
  }

  // The size of the text, the code, the text.
  void report(const Status& status) const {
    const std::string text(status.message());
    const auto size = static_cast<uint32_t>(text.size());
    std::string bytes(reinterpret_cast<const char*>(&size), sizeof size);
    absl::StrAppend(&bytes, std::string(1, static_cast<char>(status.code())), text);
    (void)!write(own_.reports, bytes.data(), bytes.size());
  }

  // ---- In the test program.

  // A report of each client.
  Status collect(absl::Duration limit) {
    absl::Time deadline = steady_now() + limit;
    std::vector<Status> statuses(clients_.size());
    std::vector<bool> has_reported(clients_.size());
    while (!std::all_of(has_reported.begin(), has_reported.end(), [](bool has) { return has; })) {
      std::vector<pollfd> waiting;
      for (size_t k = 0; k < clients_.size(); ++k) {
        waiting.push_back({has_reported[k] ? -1 : clients_[k].reports, POLLIN, 0});
      }
      const auto left = absl::ToInt64Milliseconds(deadline - steady_now());
      if (left <= 0 || poll(waiting.data(), waiting.size(), static_cast<int>(left)) == 0) break;
      for (size_t k = 0; k < clients_.size(); ++k) {
        if (waiting[k].revents == 0) continue;
        statuses[k] = read_report(clients_[k].reports);
        has_reported[k] = true;
        if (!statuses[k].ok()) deadline = std::min(deadline, steady_now() + kGrace);
      }
    }
    Status first;
    for (const bool of_consequences : {false, true}) {
      for (size_t k = 0; k < clients_.size(); ++k) {
        if (absl::IsUnavailable(statuses[k]) != of_consequences) continue;
        first.Update(with_context(statuses[k], absl::StrCat("client ", k)));
      }
    }
    for (size_t k = 0; k < clients_.size(); ++k) {
      if (!has_reported[k]) first.Update(absl::AbortedError(absl::StrCat("client ", k, " hangs")));
    }
    return first;
  }

  static bool read_all(int file, char* to, size_t size) {
    while (size > 0) {
      const ssize_t count = read(file, to, size);
      if (count <= 0) return false;
      to += count;
      size -= static_cast<size_t>(count);
    }
    return true;
  }

  static Status read_report(int file) {
    uint32_t size = 0;
    char code = 0;
    if (read_all(file, reinterpret_cast<char*>(&size), sizeof size) && read_all(file, &code, 1)) {
      std::string text(size, '\0');
      if (read_all(file, text.data(), size)) {
        return Status(static_cast<absl::StatusCode>(code), text);
      }
    }
    return absl::AbortedError("the process died");
  }

  void end() {
    is_over_ = true;
    for (const ClientProcess& client : clients_) {
      close(client.commands);
      close(client.reports);
      kill(-client.pid, SIGKILL);
      waitpid(client.pid, nullptr, 0);
    }
  }

  int num_clients_ = 0;
  int devices_per_client_ = 0;
  std::optional<ReservedPort> port_;
  std::string token_;
  bool is_over_ = false;
  std::vector<ClientProcess> clients_;
  // The state of a client's process.
  int id_ = -1;
  ClientProcess own_;
  std::optional<Client> client_;
};

OneJob* one_job() {
  // GoogleTest owns it, and calls it around all tests.
  static OneJob* const job = []() -> OneJob* {
    const char* const text = std::getenv("TESSERA_TEST_ONE_JOB");
    if (text == nullptr) return nullptr;
    return static_cast<OneJob*>(::testing::AddGlobalTestEnvironment(OneJob::create(text)));
  }();
  return job;
}

// Before main(), for the clients are forked before the first test.
[[maybe_unused]] OneJob* const at_start = one_job();

}  // namespace

bool has_one_job(const JobSpec& spec) { return one_job() != nullptr && one_job()->serves(spec); }

bool is_in_one_job() { return one_job() != nullptr && one_job()->is_client(); }

Status run_in_one_job(const JobSpec& spec, const ClientBody& body) {
  return one_job()->run(spec, body);
}

}  // namespace tessera::testing
