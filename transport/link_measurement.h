// SPDX-License-Identifier: Apache-2.0
//
// The cost of the network between the hosts of a job: measured once, when a job has connected.
//
//   network_class(*measure_network(engine, coordinator, deadline))   the same on every client
//
// The first client of each host takes part, the others read the result. Host h measures the link to
// host h + 1, and then to the one farthest from it in the ring of hosts; all hosts at once:
//
//   h  -- 8 bytes -->  h + 1     16 times there and back: the least is twice the latency
//   h  <-- 8 bytes --  h + 1
//   h  == 512 KiB ==>  h + 1     4 times, when the small ones both ways are over: the best rate
//   h  <-- 8 bytes --  h + 1
//
// Client 0 takes the median of all results, and the better of two. A slow sample says more of a
// busy host than of its link, and the worst of many differs from run to run.
//
// Invariants:
//   1. All clients get the same numbers, or all that wait get an error.
//   2. Plans depend on classes, never on the numbers. A plan decides in which order terms are
//      added, so numbers would change the bits of sums from run to run. The borders of the classes
//      are far from common networks; other work on the hosts may still lead to a slower class.
//   3. A measurement lasts at most kLongestMeasurement for each of the two ways. A message that has
//      not arrived by then is taken to arrive then.
//   4. A late peer may still send or ask afterwards. This meets no freed memory and no receive of
//      others: the tags belong to link_measurement.cc, and the engine keeps the memory.
#ifndef TESSERA_TRANSPORT_LINK_MEASUREMENT_H_
#define TESSERA_TRANSPORT_LINK_MEASUREMENT_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "job/coordinator/coordinator.h"
#include "transport/engine.h"

namespace tessera::transport {

inline constexpr absl::Duration kLongestMeasurement = absl::Milliseconds(500);

// The cost of a message from one host to another.
struct NetworkCost {
  double latency_s;
  double bytes_per_s;

  friend bool operator==(const NetworkCost& a, const NetworkCost& b) {
    return a.latency_s == b.latency_s && a.bytes_per_s == b.bytes_per_s;
  }
};

// The class of a network, by round numbers that stand for it:
//
//   latency   below 200 us   50 us   one site
//             else            1 ms   between sites
//   rate      below 0.4 GB/s   0.125 GB/s   1 and 2.5 Gbit/s Ethernet
//             below 8 GB/s      1.25 GB/s   10 to 50 Gbit/s; TCP of one client on any faster one
//             else              12.5 GB/s   RDMA of 100 Gbit/s and more
NetworkCost network_class(const NetworkCost& measured);

// The median latency and the median rate, each by itself; of an even number the better of the two
// middle values. Requires at least one cost.
NetworkCost median(absl::Span<const NetworkCost> costs);

// "31000:117000000,29000:118000000": nanoseconds and bytes a second, whole numbers.
std::string to_text(absl::Span<const NetworkCost> costs);
// Internal where `text` is no result of to_text(), or has no costs.
StatusOr<std::vector<NetworkCost>> parse_costs(absl::string_view text);

// The distances in the ring of hosts at which each host measures a link.
std::vector<int> measured_distances(int num_hosts);

// The cost that the first clients of all hosts have measured, before rounding. Collective over all
// clients of a job over several hosts, once in a job. Requires that the engine is connected to the
// clients of the other hosts.
//   DeadlineExceeded   names the first clients of hosts that have not arrived
//   Unavailable        names a client that is lost, or with which the connection is broken
StatusOr<NetworkCost> measure_network(Engine& engine, Coordinator& coordinator,
                                      absl::Time deadline);

}  // namespace tessera::transport

#endif  // TESSERA_TRANSPORT_LINK_MEASUREMENT_H_
