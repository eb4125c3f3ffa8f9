// SPDX-License-Identifier: Apache-2.0
#include "job/environment/address.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tessera {

std::optional<Address> parse_address(absl::string_view text, int least_port) {
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return std::nullopt;
  Address address;
  const absl::string_view port = text.substr(colon + 1);
  // SimpleAtoi takes spaces and signs too.
  if (!std::all_of(port.begin(), port.end(), absl::ascii_isdigit)) return std::nullopt;
  if (!absl::SimpleAtoi(port, &address.port)) return std::nullopt;
  if (address.port < least_port || address.port > 65535) return std::nullopt;
  absl::string_view host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  if (!std::all_of(host.begin(), host.end(), absl::ascii_isgraph)) return std::nullopt;
  address.host = std::string(host);
  return address;
}

std::string join_address(absl::string_view host, int port) {
  const bool is_bare_ipv6 = absl::StrContains(host, ':') && !absl::StartsWith(host, "[");
  return is_bare_ipv6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

}  // namespace tessera
