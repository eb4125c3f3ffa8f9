// SPDX-License-Identifier: Apache-2.0
//
// Addresses of services, as users write them: "host-a:4000", "127.0.0.1:4000", "[::1]:4000".
#ifndef TESSERA_JOB_ENVIRONMENT_ADDRESS_H_
#define TESSERA_JOB_ENVIRONMENT_ADDRESS_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace tessera {

struct Address {
  std::string host;  // without brackets
  int port = 0;      // to 65535
};

// Nothing where the text is no HOST:PORT. Port 0 is for listeners: any free port.
std::optional<Address> parse_address(absl::string_view text, int least_port = 1);
// "host:port"; an IPv6 address without brackets gets them.
std::string join_address(absl::string_view host, int port);

}  // namespace tessera

#endif  // TESSERA_JOB_ENVIRONMENT_ADDRESS_H_
