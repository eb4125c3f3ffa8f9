// SPDX-License-Identifier: Apache-2.0
//
// Heartbeats between the chief and its tasks. Each side counts, at ticks of its own, the signs of
// the other, and gives the other up
//
//   silent   after more than kMissedHeartbeats intervals without a sign of it. A process that lacks
//            CPU is late, so the interval is long
//   gone     after kMostBrokenTicks ticks without a connection, where there was one. The kernel
//            keeps the connections of a process that lacks CPU, and makes new ones; it ends the
//            connections of a process that has ended
//
// Ticks are counted and not timed: a pause of the process that counts ends nothing.
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
// How many ticks kMissedHeartbeats intervals are. When so many in a row were silent, the last sign
// is older than these intervals: it came before the first of the ticks.
inline int64_t most_silent_ticks(absl::Duration interval) {
  const absl::Duration tick = tick_of(interval);
  return (kMissedHeartbeats * interval + tick - absl::Nanoseconds(1)) / tick;
}

}  // namespace tessera::distribute

#endif  // TESSERA_SERVERS_HEARTBEATS_H_
