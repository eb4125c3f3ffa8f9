// SPDX-License-Identifier: Apache-2.0
//
// The network interface by which a client reaches the clients of other hosts.
//
//   TESSERA_INTERFACE=eth1           the interface of that name
//   TESSERA_INTERFACE=10.1.0.0/16    the first with an address of that network; IPv6 too
//   not set                          the interface with the route to the coordinator
//
// No interface is excluded by its name: the interfaces that other libraries exclude (docker0,
// virbr0) have a route to the coordinator only if the coordinator is there.
#ifndef TESSERA_JOB_ENVIRONMENT_INTERFACE_H_
#define TESSERA_JOB_ENVIRONMENT_INTERFACE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/status.h"

namespace tessera {

struct NetworkInterface {
  std::string name;                    // "eth0"
  std::vector<std::string> addresses;  // as numbers, without the length of the prefix; IPv4 first
  bool is_up = true;
  bool is_loopback = false;

  std::string to_string() const;  // "eth0 (10.77.0.1, fd77::1)", with "down" or "no address"
};

// Chooses one of `interfaces`. `asked` is the value of TESSERA_INTERFACE, empty where it is not
// set. `route` is the address of this host in its connection to the coordinator, empty where there
// is none. The errors list the interfaces.
//   InvalidArgument      `asked` is no name and no network, or no interface that is up has it
//   FailedPrecondition   nothing is asked, and no interface has the address `route`
StatusOr<NetworkInterface> choose_interface(absl::string_view asked, absl::string_view route,
                                            absl::Span<const NetworkInterface> interfaces);

// The interfaces of this network namespace, in the order of the kernel. Internal where the kernel
// does not list them.
StatusOr<std::vector<NetworkInterface>> list_interfaces();

// "eth0 (10.77.0.1), docker0 (172.17.0.1, down)".
std::string describe_interfaces(absl::Span<const NetworkInterface> interfaces);

// The address from which this host sends to `address` ("host:port"), as a number; empty where the
// name has no address or there is no route. Sends nothing, except to look the name up.
std::string route_to(absl::string_view address);

// The value of TESSERA_INTERFACE, empty where it is not set.
std::string asked_interface();

}  // namespace tessera

#endif  // TESSERA_JOB_ENVIRONMENT_INTERFACE_H_
