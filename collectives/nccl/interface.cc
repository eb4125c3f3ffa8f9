// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/interface.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "job/environment/interface.h"

namespace tessera::nccl {

void choose_interface() {
  std::string name = asked_interface();
  if (name.empty()) return;
  // A network, as in 10.1.0.0/16. Where no interface has it, the client says so when it connects.
  const StatusOr<std::vector<NetworkInterface>> interfaces = list_interfaces();
  if (!interfaces.ok()) return;
  const StatusOr<NetworkInterface> chosen = choose_interface(name, "", *interfaces);
  if (chosen.ok()) name = chosen->name;
  // NCCL takes a plain name as a prefix: "eth1" would stand for "eth10" too.
  setenv("NCCL_SOCKET_IFNAME", absl::StrCat("=", name).c_str(), /*overwrite=*/0);
}

}  // namespace tessera::nccl
