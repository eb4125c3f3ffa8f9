// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include <time.h>

#include <algorithm>

namespace tessera {
namespace {

absl::Time read(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return absl::TimeFromTimespec(now);
}

// Far beyond every deadline, and a number that both std::chrono and the kernel hold.
constexpr absl::Duration kLongest = absl::Hours(24 * 365 * 100);

std::chrono::nanoseconds to_chrono(absl::Duration duration) {
  return absl::ToChronoNanoseconds(std::clamp(duration, -kLongest, kLongest));
}

}  // namespace

absl::Time steady_now() { return read(CLOCK_MONOTONIC); }

absl::Time coarse_steady_now() { return read(CLOCK_MONOTONIC_COARSE); }

absl::Duration coarse_tick() {
  static const absl::Duration tick = [] {
    timespec resolution;
    clock_getres(CLOCK_MONOTONIC_COARSE, &resolution);
    return absl::DurationFromTimespec(resolution);
  }();
  return tick;
}

std::chrono::steady_clock::time_point to_chrono_steady(absl::Time time) {
  // absl::Time inside Tessera has the clock and the epoch of steady_clock.
  return std::chrono::steady_clock::time_point(to_chrono(time - absl::UnixEpoch()));
}

int poll_timeout_ms(absl::Duration left) {
  const absl::Duration bounded = std::clamp(left, absl::ZeroDuration(), absl::Hours(1));
  return static_cast<int>(absl::ToInt64Milliseconds(bounded + absl::Microseconds(999)));
}

std::chrono::system_clock::time_point to_chrono_wall(absl::Time time) {
  return std::chrono::system_clock::now() +
         std::chrono::duration_cast<std::chrono::system_clock::duration>(
             to_chrono(time - steady_now()));
}

}  // namespace tessera
