// SPDX-License-Identifier: Apache-2.0
//
// The clock inside Tessera: the monotonic clock of the machine, which no step of the wall clock
// moves.
//
//   steady_now() + absl::Seconds(5)      a deadline
//
// Invariants:
//   1. steady_now() never goes back; it counts from the boot of the machine, so that it is the same
//      in all processes of one host and means nothing on another one;
//   2. every absl::Time inside Tessera is of this clock; only durations cross the public API and
//      the network. `tools/tidy` refuses absl::Now() in libraries and tests.
//
// Thread-safe.
#ifndef TESSERA_BASE_CLOCK_H_
#define TESSERA_BASE_CLOCK_H_

#include <chrono>

#include "absl/time/time.h"

namespace tessera {

absl::Time steady_now();
// The time of the kernel's last tick, at a tenth of the cost. Never ahead of steady_now(); behind
// it by coarse_tick() at most, or by more where the machine is so busy that ticks are late.
absl::Time coarse_steady_now();
absl::Duration coarse_tick();  // 1 to 10 ms

// For std::condition_variable::wait_until(). A time beyond the range of std::chrono becomes its
// last one.
std::chrono::steady_clock::time_point to_chrono_steady(absl::Time time);
// For poll(2): milliseconds, rounded up, from 0 to one hour.
int poll_timeout_ms(absl::Duration left);
// For gRPC: the wall-clock time that is as far from now as `time` is.
std::chrono::system_clock::time_point to_chrono_wall(absl::Time time);

}  // namespace tessera

#endif  // TESSERA_BASE_CLOCK_H_
