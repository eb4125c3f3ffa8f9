// SPDX-License-Identifier: Apache-2.0
//
// Heartbeats between the chief and its tasks. Each side counts, at ticks of its own timer, the
// signs of life of the other. It declares the other lost if it is
//
//   silent   for more than kMissedHeartbeats intervals without a sign of life. A process that lacks
//            CPU is late, so the interval is long
//   gone     for kMostBrokenTicks ticks without a connection, after there was one. The kernel keeps
//            the connections of a process that lacks CPU, and accepts new ones; it closes the
//            connections of a process that has ended
//
// Ticks are counted, not timed: a pause of the counting process causes no loss.
#ifndef TESSERA_SERVERS_HEARTBEATS_H_
#define TESSERA_SERVERS_HEARTBEATS_H_

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace tessera::distribute {

inline constexpr int kMissedHeartbeats = 3;
inline constexpr int kMostBrokenTicks = 3;
inline constexpr absl::Duration kLongestTick = absl::Milliseconds(400);

inline absl::Duration tick_of(absl::Duration interval) { return std::min(interval, kLongestTick); }
// The number of ticks in kMissedHeartbeats intervals. After so many silent ticks in a row the last
// sign of life is older than these intervals, because it came before the first of the ticks.
inline int64_t most_silent_ticks(absl::Duration interval) {
  const absl::Duration tick = tick_of(interval);
  return (kMissedHeartbeats * interval + tick - absl::Nanoseconds(1)) / tick;
}

}  // namespace tessera::distribute

#endif  // TESSERA_SERVERS_HEARTBEATS_H_
