// SPDX-License-Identifier: Apache-2.0
//
// Helpers of the proofs of //tests/collectives:stress_test: flags, forms of the job, and
// pseudo-random numbers.
#ifndef TESSERA_TESTS_COLLECTIVES_STRESS_H_
#define TESSERA_TESTS_COLLECTIVES_STRESS_H_

#include <cstdint>

#include "absl/time/time.h"
#include "tests/support/clients.h"
#include "tests/support/job_forms.h"
#include "tests/support/sanitizers.h"

namespace tessera::testing {

// Set by the flags of the program (stress_test.cc).
struct StressArguments {
  uint64_t seed = 20240607;
  int64_t random_ops = kSanitized ? 200 : 2000;
  int64_t growth_ops = kSanitized ? 200 : 4000;
  int64_t meshes = kSanitized ? 200 : 4000;
  int64_t shapes = kSanitized ? 200 : 4000;
  int64_t calls = 40;
  int64_t kills = 8;
  double slowest_call_ms = 0;  // 0: not looked at
  double slowest_loss_ms = 0;
};
inline StressArguments arguments;

inline constexpr JobForm kForms[] = {
    {"OneClientOfEight", Setting::kThreads, 1, 8},
    {"FourProcessesOfTwo", Setting::kProcesses, 4, 2},
    {"EightProcessesOfOne", Setting::kProcesses, 8, 1},
};

// Long forms have no limit that depends on their length; a hang ends them all the same.
inline Status run_form(const JobForm& form, int64_t num_ops, const ClientBody& body) {
  return run_clients({.setting = form.setting,
                      .num_clients = form.num_clients,
                      .devices_per_client = form.devices_per_client,
                      .deadline = absl::Seconds(100) + num_ops * absl::Milliseconds(20)},
                     body);
}

inline uint64_t scramble(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_COLLECTIVES_STRESS_H_
