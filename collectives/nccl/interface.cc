// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/interface.h"

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"

namespace tessera::nccl {

void choose_interface() {
  const char* const name = std::getenv("TESSERA_INTERFACE");
  if (name == nullptr || *name == '\0') return;
  // NCCL takes a plain name as a prefix: "eth1" would stand for "eth10" too.
  setenv("NCCL_SOCKET_IFNAME", absl::StrCat("=", name).c_str(), /*overwrite=*/0);
}

}  // namespace tessera::nccl
