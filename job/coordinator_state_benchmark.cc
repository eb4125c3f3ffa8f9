// SPDX-License-Identifier: Apache-2.0
//
// What the coordinator's state machine costs by the number of clients: heartbeats per second of a
// job, and one create_mesh over all clients. No network; bazel run -c opt it.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "job/client_ranges.h"
#include "job/coordinator_state.h"

namespace tessera {
namespace {

double seconds_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void run_callbacks(CoordinatorState& state) {
  for (const std::function<void()>& callback : state.take_callbacks()) callback();
}

void measure(int num_clients) {
  CoordinatorState state({.num_clients = num_clients, .address = "host-0:1234"});
  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  for (int i = 0; i < num_clients; ++i) {
    CoordinatorState::Registration registration;
    registration.member.client_id = i;
    registration.member.host = absl::StrCat("host-", i / 8);
    registration.member.num_local_devices = 8;
    registration.num_clients = num_clients;
    state.register_client(1000 + i, registration, now, now + absl::Seconds(60),
                          [](const Status&) {});
  }
  run_callbacks(state);

  // Each second of a job: a heartbeat of every client, and one tick.
  constexpr int kSeconds = 100;
  const double beats = seconds_of([&] {
    for (int second = 0; second < kSeconds; ++second) {
      now += absl::Seconds(1);
      for (int i = 0; i < num_clients; ++i) state.heartbeat(1000 + i);
      state.advance(now);
      run_callbacks(state);
    }
  });

  std::vector<int> all(num_clients);
  std::iota(all.begin(), all.end(), 0);
  const ClientRanges participants = ClientRanges::of(all);
  int num_passed = 0;
  double best = 1e9;
  for (int repetition = 0; repetition < 5; ++repetition) {
    best = std::min(best, seconds_of([&] {
                      for (int i = 0; i < num_clients; ++i) {
                        state.check_in(
                            i, "create_mesh", "{x=80000} of devices [0-79999]", participants, now,
                            now + absl::Seconds(60),
                            [&](const Status& status) { num_passed += status.ok() ? 1 : 0; });
                      }
                      run_callbacks(state);
                    }));
  }
  std::printf("%6d clients: heartbeats %7.4f %% of a core, create_mesh %8.3f ms, %s\n", num_clients,
              100 * beats / kSeconds, 1000 * best,
              num_passed == 5 * num_clients && state.client_of(1000 + num_clients - 1).ok()
                  ? "right"
                  : "WRONG");
}

}  // namespace
}  // namespace tessera

int main() {
  for (const int num_clients : {100, 1'000, 10'000, 100'000}) tessera::measure(num_clients);
}
