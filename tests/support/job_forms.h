// SPDX-License-Identifier: Apache-2.0
//
// JobFormTest: runs a test as several forms of a job of 8 devices:
// - one client of 8 devices, 4 clients of 2 as threads, and 4 as processes;
// - for a suite that does not read the memory of devices by itself also on GPUs, which are the fake
//   of CUDA: as one client of 8 devices and, with the fake of NCCL, as 4 clients of 2;
// - with $TESSERA_TEST_GPU also on a GPU of the machine, as one client, and as 8 clients that are
//   processes and share it.
//
//   class RowTest : public JobFormTest {};
//   INSTANTIATE_TEST_SUITE_P(Forms, RowTest, ::testing::ValuesIn(kJobForms), job_form_name);
//   TEST_P(RowTest, Iota) { EXPECT_THAT(run([](Client& client) -> Status { ... }), IsOk()); }
#ifndef TESSERA_TESTS_SUPPORT_JOB_FORMS_H_
#define TESSERA_TESTS_SUPPORT_JOB_FORMS_H_

#include <ostream>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "collectives/nccl/fake/fake_nccl.h"
#include "compute/cuda/fake/fake_math.h"
#include "device/cuda/fake/fake_cuda.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "gtest/gtest.h"
#include "tests/support/clients.h"
#include "tests/support/expect_error.h"
#include "tests/support/gpu.h"
#include "tests/support/one_job.h"
#include "tests/support/sanitizers.h"

namespace tessera::testing {

struct JobForm {
  const char* name;
  Setting setting;
  int num_clients;
  int devices_per_client;
  // Devices are GPUs: of the fake, so many of them; or kRealGpus.
  int num_gpus = 0;
  // Clients share a GPU, as ClientHooks::share_gpus says.
  bool shares_gpus = false;
  // Clients are dealt to so many hosts, in order (on_hosts()).
  int num_hosts = 1;
};
inline constexpr int kRealGpus = -1;

inline constexpr JobForm kJobForms[] = {
    {"OneClientOfEight", Setting::kThreads, 1, 8},
    {"FourThreadsOfTwo", Setting::kThreads, 4, 2},
    {"FourProcessesOfTwo", Setting::kProcesses, 4, 2},
};

// Four clients of two devices on two hosts. For bodies that take any number of hosts.
inline constexpr JobForm kTwoHosts = {
    "FourClientsOnTwoHosts", Setting::kThreads, 4, 2, 0, false, 2};

// Eight devices that share one GPU of the fake, eight on three, and eight of four clients, each on
// its own; with $TESSERA_TEST_GPU also on a GPU of the machine. Under sanitizers the list has only
// one of the first two.
inline std::vector<JobForm> cuda_forms() {
  std::vector<JobForm> forms = {
      {"OneClientOfEightOnThreeGpus", Setting::kThreads, 1, 8, 3},
      {"FourClientsOfTwoOnEightGpus", Setting::kThreads, 4, 2, 8},
  };
  if (!kSanitized) {
    forms.push_back({"OneClientOfEightOnOneGpu", Setting::kThreads, 1, 8, 1});
    forms.push_back({"EightClientsShareAGpu", Setting::kThreads, 8, 1, 1, true});
  }
  if (is_test_gpu_asked_for()) {
    forms.push_back({"OneClientOfEightOnTheGpu", Setting::kProcesses, 1, 8, kRealGpus});
    forms.push_back({"EightProcessesShareTheGpu", Setting::kProcesses, 8, 1, kRealGpus, true});
  }
  return forms;
}

// Two, four and eight clients of one device that share one GPU: of the fake, as threads; with
// $TESSERA_TEST_GPU the GPU of the machine, as processes. For bodies that accept any number of
// devices. Under sanitizers only four.
inline std::vector<JobForm> sharing_forms() {
  std::vector<JobForm> forms = {{"FourClientsShareAGpu", Setting::kThreads, 4, 1, 1, true}};
  if (!kSanitized) {
    forms.push_back({"TwoClientsShareAGpu", Setting::kThreads, 2, 1, 1, true});
    forms.push_back({"EightClientsShareAGpu", Setting::kThreads, 8, 1, 1, true});
  }
  if (is_test_gpu_asked_for()) {
    forms.push_back({"TwoProcessesShareTheGpu", Setting::kProcesses, 2, 1, kRealGpus, true});
    forms.push_back({"FourProcessesShareTheGpu", Setting::kProcesses, 4, 1, kRealGpus, true});
    forms.push_back({"EightProcessesShareTheGpu", Setting::kProcesses, 8, 1, kRealGpus, true});
  }
  return forms;
}

inline std::ostream& operator<<(std::ostream& out, const JobForm& form) { return out << form.name; }

inline std::string job_form_name(const ::testing::TestParamInfo<JobForm>& info) {
  return info.param.name;
}

class JobFormTest : public ::testing::TestWithParam<JobForm> {
 protected:
  void SetUp() override {
    if (GetParam().num_gpus != kRealGpus) return;
    const Status gpu = GetParam().num_clients > 1 ? test_gpu_with_nccl() : test_gpu();
    if (!gpu.ok()) GTEST_SKIP() << gpu;
  }
  // Calls run_clients() in the form of the test; uses the one job for many bodies, if there is a
  // job of this form (one_job.h).
  static Status run(const ClientBody& body) {
    JobSpec spec = spec_of_form();
    if (GetParam().num_gpus == kRealGpus) set_real_gpus(spec);
    return has_one_job(spec) ? run_in_one_job(spec, body) : run(body, {});
  }
  // In a job of its own.
  static Status run(const ClientBody& body, const ClientOptions& options,
                    const internal::ClientHooks& hooks = {}) {
    JobSpec spec = spec_of_form();
    spec.options = options;
    spec.hooks = hooks;
    if (GetParam().num_hosts > 1) {
      spec.hooks.host_ids = on_hosts(spec.num_clients, GetParam().num_hosts);
    }
    // A process of the one job has no clients of its own: its test program starts them.
    if (is_in_one_job()) return absl::OkStatus();
    if (GetParam().num_gpus == 0) return run_clients(spec, body);
    if (GetParam().num_gpus == kRealGpus) {
      set_real_gpus(spec);
      return run_clients(spec, body);
    }
    spec.options.device_type = DeviceType::kCuda;
    spec.hooks.share_gpus = GetParam().shares_gpus;
    const auto api = cuda::FakeCuda::create({.num_gpus = GetParam().num_gpus});
    const auto nccl = nccl::FakeNccl::create(api, {.shares_gpus = GetParam().shares_gpus});
    spec.hooks.cuda = cuda::fake_libraries(api);
    spec.hooks.nccl = nccl;
    return run_clients(spec, [&](Client& client) -> Status {
      TESSERA_RETURN_IF_ERROR(body(client));
      for (const std::vector<std::string>& misuses : {api->misuses(), nccl->misuses()}) {
        TESSERA_REQUIRE(misuses.empty(), misuses[0]);
      }
      return absl::OkStatus();
    });
  }

 private:
  static JobSpec spec_of_form() {
    return {.setting = GetParam().setting,
            .num_clients = GetParam().num_clients,
            .devices_per_client = GetParam().devices_per_client};
  }
  static void set_real_gpus(JobSpec& spec) {
    spec.options.device_type = DeviceType::kCuda;
    spec.hooks.share_gpus = GetParam().shares_gpus;
    // Processes take turns on a GPU that they share: an operation takes a tenth of a second.
    if (GetParam().shares_gpus) spec.deadline = absl::Minutes(6);
  }
};

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_JOB_FORMS_H_
