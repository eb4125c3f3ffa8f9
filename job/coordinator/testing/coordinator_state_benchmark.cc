// SPDX-License-Identifier: Apache-2.0
//
// The cost of the coordinator's state machine by the number of clients: the seconds of each part of
// a simulated job (simulated_job.h), and the memory of the process at its peak. No network; bazel
// run -c opt it. The goal is 10,000 clients in less than 5 s and 200 MB.
#include <sys/resource.h>

#include <cstdio>

#include "job/coordinator/testing/simulated_job.h"

int main() {
  for (const int num_clients : {96, 992, 10'000}) {
    double total = 0;
    for (const auto& part : tessera::testing::SimulatedJob(num_clients).run()) {
      std::printf("%6d clients %8.3f ms  %s%s\n", num_clients, 1000 * part.cost, part.name.c_str(),
                  part.is_right ? "" : ": WRONG");
      total += part.cost;
    }
    rusage used = {};
    getrusage(RUSAGE_SELF, &used);
    std::printf("%6d clients %8.3f ms  in all; at most %ld MB so far\n\n", num_clients,
                1000 * total, used.ru_maxrss / 1024);
  }
}
