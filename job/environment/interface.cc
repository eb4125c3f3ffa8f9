// SPDX-License-Identifier: Apache-2.0
#include "job/environment/interface.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "job/environment/address.h"
#include "job/environment/file_descriptor.h"

namespace tessera {
namespace {

constexpr const char* kVariable = "TESSERA_INTERFACE";

// The bytes of an address; nothing where the text is none.
std::optional<std::vector<uint8_t>> parse_number(absl::string_view text) {
  const std::string address(text);
  for (const int family : {AF_INET, AF_INET6}) {
    std::vector<uint8_t> bytes(family == AF_INET ? sizeof(in_addr) : sizeof(in6_addr));
    if (inet_pton(family, address.c_str(), bytes.data()) == 1) return bytes;
  }
  return std::nullopt;
}

// "10.1.0.0/16".
struct Network {
  std::vector<uint8_t> bytes;
  int prefix_bits = 0;

  bool has(absl::string_view address) const {
    const std::optional<std::vector<uint8_t>> other = parse_number(address);
    if (!other.has_value() || other->size() != bytes.size()) return false;
    for (int bit = 0; bit < prefix_bits; ++bit) {
      const int mask = 0x80 >> (bit % 8);
      if (((bytes[bit / 8] ^ (*other)[bit / 8]) & mask) != 0) return false;
    }
    return true;
  }
};

std::optional<Network> parse_network(absl::string_view text) {
  const size_t slash = text.find('/');
  if (slash == absl::string_view::npos) return std::nullopt;
  Network network;
  const std::optional<std::vector<uint8_t>> bytes = parse_number(text.substr(0, slash));
  if (!bytes.has_value() || !absl::SimpleAtoi(text.substr(slash + 1), &network.prefix_bits)) {
    return std::nullopt;
  }
  network.bytes = *bytes;
  const int most = static_cast<int>(network.bytes.size()) * 8;
  if (network.prefix_bits < 0 || network.prefix_bits > most) return std::nullopt;
  return network;
}

Status refuse(absl::string_view asked, absl::string_view why,
              absl::Span<const NetworkInterface> interfaces) {
  return absl::InvalidArgumentError(absl::StrCat(kVariable, " is ", in_quotes(asked), "; ", why,
                                                 "; this host has ",
                                                 describe_interfaces(interfaces)));
}

StatusOr<NetworkInterface> find_network(absl::string_view asked,
                                        absl::Span<const NetworkInterface> interfaces) {
  const std::optional<Network> network = parse_network(asked);
  if (!network.has_value()) {
    return refuse(asked, "a network should be as in 10.1.0.0/16 or fd00::/64", interfaces);
  }
  for (const NetworkInterface& interface : interfaces) {
    if (interface.is_up &&
        std::any_of(interface.addresses.begin(), interface.addresses.end(),
                    [&](const auto& address) { return network->has(address); })) {
      return interface;
    }
  }
  return refuse(asked, "no interface that is up has an address of that network", interfaces);
}

// The text of a socket's address; empty for addresses of other families.
std::string to_text(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address != nullptr && address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  } else if (address != nullptr && address->sa_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text,
              sizeof text);
  }
  return text;
}

}  // namespace

std::string NetworkInterface::to_string() const {
  std::vector<std::string> parts = addresses;
  if (parts.empty()) parts.emplace_back("no address");
  if (!is_up) parts.emplace_back("down");
  return absl::StrCat(name, " (", absl::StrJoin(parts, ", "), ")");
}

std::string describe_interfaces(absl::Span<const NetworkInterface> interfaces) {
  if (interfaces.empty()) return "no network interface";
  return absl::StrJoin(interfaces, ", ", [](std::string* text, const NetworkInterface& interface) {
    absl::StrAppend(text, interface.to_string());
  });
}

StatusOr<NetworkInterface> choose_interface(absl::string_view asked, absl::string_view route,
                                            absl::Span<const NetworkInterface> interfaces) {
  if (asked.find('/') != absl::string_view::npos) return find_network(asked, interfaces);
  for (const NetworkInterface& interface : interfaces) {
    if (asked.empty()) {
      const auto& addresses = interface.addresses;
      if (std::find(addresses.begin(), addresses.end(), route) != addresses.end()) return interface;
    } else if (interface.name == asked) {
      if (!interface.is_up) return refuse(asked, "that interface is down", interfaces);
      if (interface.addresses.empty()) {
        return refuse(asked, "that interface has no address", interfaces);
      }
      return interface;
    }
  }
  if (!asked.empty()) return refuse(asked, "there is no such interface", interfaces);
  return absl::FailedPreconditionError(
      absl::StrCat("no network interface leads to the coordinator",
                   route.empty() ? "" : absl::StrCat(" (from ", route, ")"), "; this host has ",
                   describe_interfaces(interfaces), "; set ", kVariable,
                   " to the name or the network of the one that the other hosts reach"));
}

StatusOr<std::vector<NetworkInterface>> list_interfaces() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) {
    return absl::ErrnoToStatus(errno, "cannot list the network interfaces of this host");
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(all, freeifaddrs);
  std::vector<NetworkInterface> interfaces;
  for (const ifaddrs* entry = all; entry != nullptr; entry = entry->ifa_next) {
    auto found = std::find_if(interfaces.begin(), interfaces.end(),
                              [&](const auto& one) { return one.name == entry->ifa_name; });
    if (found == interfaces.end()) {
      interfaces.push_back({.name = entry->ifa_name,
                            .addresses = {},
                            .is_up = (entry->ifa_flags & IFF_UP) != 0,
                            .is_loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0});
      found = interfaces.end() - 1;
    }
    const std::string address = to_text(entry->ifa_addr);
    if (!address.empty()) found->addresses.push_back(address);
  }
  return interfaces;
}

std::string route_to(absl::string_view address) {
  const std::optional<Address> peer = parse_address(address);
  if (!peer.has_value()) return "";
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;  // its connect() asks the routing table, and sends nothing
  addrinfo* all = nullptr;
  const std::string port = absl::StrCat(peer->port);
  if (getaddrinfo(peer->host.c_str(), port.c_str(), &hints, &all) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(all, freeaddrinfo);
  for (const addrinfo* entry = all; entry != nullptr; entry = entry->ai_next) {
    const FileDescriptor fd(socket(entry->ai_family, entry->ai_socktype | SOCK_CLOEXEC, 0));
    sockaddr_storage own = {};
    socklen_t size = sizeof own;
    if (fd.is_open() && connect(fd.get(), entry->ai_addr, entry->ai_addrlen) == 0 &&
        getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &size) == 0) {
      return to_text(reinterpret_cast<const sockaddr*>(&own));
    }
  }
  return "";
}

std::string asked_interface() {
  const char* const asked = std::getenv(kVariable);
  return asked == nullptr ? "" : asked;
}

}  // namespace tessera
