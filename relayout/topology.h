// SPDX-License-Identifier: Apache-2.0
//
// Topology: the links between the devices of a job, and their costs.
//
//   uniform(2, 4, costs)                  8 devices, 2 per process, 4 per host
//
//     host 0                 host 1
//     process 0  process 1   process 2  process 3
//      0   1      2   3       4   5      6   7
//
//     link(0, 1) = process     link(0, 3) = host     link(0, 4) = network
//
// A message of n bytes over a link of class c is assumed to cost cost(c).latency_s + n *
// cost(c).seconds_per_byte, the alpha-beta model. Plans choose their schedules and senders by these
// costs; the costs never change the result of a relayout.
//
// Invariants (checked by the factories):
//   1. a process is on one host;
//   2. costs are finite and not negative.
//
// A Topology is a value: immutable, cheap to copy, compared by content, with a hash that is the
// same in every process; safe to read from any thread. Clients that plan together must have equal
// topologies.
#ifndef TESSERA_RELAYOUT_TOPOLOGY_H_
#define TESSERA_RELAYOUT_TOPOLOGY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/public.h"
#include "base/status.h"

namespace TESSERA_PUBLIC tessera {

// Near to far.
enum class LinkClass : uint8_t {
  kProcess,  // both devices belong to one process
  kHost,     // to two processes of one host
  kNetwork,  // to two hosts
};
inline constexpr int kNumLinkClasses = 3;
// "process", "host", "network".
absl::string_view link_class_name(LinkClass link);

// The cost of a link: seconds to start a batch of messages, and seconds for each byte that a device
// receives.
struct LinkCost {
  double latency_s;
  double seconds_per_byte;

  friend bool operator==(const LinkCost& a, const LinkCost& b) {
    return a.latency_s == b.latency_s && a.seconds_per_byte == b.seconds_per_byte;
  }
};

// One cost per class. The defaults are round numbers of machines with CPU devices and a 10 Gbit/s
// network; measured ones replace them.
struct LinkCosts {
  LinkCost process = {2e-6, 1 / 10e9};
  LinkCost host = {10e-6, 1 / 5e9};
  LinkCost network = {50e-6, 1 / 1e9};

  friend bool operator==(const LinkCosts& a, const LinkCosts& b) {
    return a.process == b.process && a.host == b.host && a.network == b.network;
  }
};

class Topology;
bool operator==(const Topology& a, const Topology& b);

class Topology {
 public:
  // One host, each device a process of its own, default costs: every link is kHost.
  Topology();
  // Devices 0, 1, 2, ... fill processes of `devices_per_process`, and these fill hosts of
  // `devices_per_host`, as many as there are. InvalidArgument for a number below 1, for processes
  // that do not fill their hosts, and for a cost that is negative or not finite.
  static StatusOr<Topology> uniform(int64_t devices_per_process, int64_t devices_per_host,
                                    const LinkCosts& costs = {});
  // Device d belongs to process process_of[d] on host host_of[d]; the numbers are names.
  // InvalidArgument for lists of different lengths, a process on two hosts, and costs as above.
  static StatusOr<Topology> of_devices(std::vector<int> process_of, std::vector<int> host_of,
                                       const LinkCosts& costs = {});

  // The link between two device ids, which are not negative; kProcess for one device. A device that
  // is not listed in of_devices() is alone on a host of its own.
  LinkClass link(int device_a, int device_b) const;
  // A number that is equal for devices of one host, and differs between hosts.
  int64_t host(int device_id) const;
  // Keeps the hosts, with one process per device: equal for equal hosts, however they are written
  // down. Where hosts are blocks of one size the result is a uniform() topology, which covers every
  // device id.
  Topology without_processes() const;
  LinkCost cost(LinkClass link) const;
  const LinkCosts& costs() const;
  // The number of devices listed; nothing for uniform(), which covers every device id.
  std::optional<int64_t> num_devices() const;
  // The class of all links between two different devices, where there is only one: the topology is
  // flat. Only listed devices count, where devices are listed.
  std::optional<LinkClass> only_link() const;
  // How many devices with ids in a row share a process, or a host: {1, 1} where they do not come
  // in such blocks (of_devices()). Each block starts at a multiple of its size.
  std::pair<int64_t, int64_t> block_sizes() const;

  // A value: a move is a copy.
  Topology(const Topology&) = default;
  Topology& operator=(const Topology&) = default;

  // "1 device per process, 4 per host; process 2 us, 10 GB/s, host ..., network ...", or
  // "processes 0,0,1,1, hosts 0,0,0,0; process ...".
  std::string to_string() const;
  // Equal in every process.
  uint64_t hash() const;
  friend bool operator==(const Topology& a, const Topology& b);
  template <typename H>
  friend H AbslHashValue(H h, const Topology& topology) {
    return H::combine(std::move(h), topology.hash());
  }
  friend std::ostream& operator<<(std::ostream& out, const Topology& topology) {
    return out << topology.to_string();
  }

 private:
  struct Rep;
  explicit Topology(std::shared_ptr<const Rep> rep) : rep_(std::move(rep)) {}

  std::shared_ptr<const Rep> rep_;
};

}  // namespace tessera

#endif  // TESSERA_RELAYOUT_TOPOLOGY_H_
