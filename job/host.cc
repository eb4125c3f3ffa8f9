// SPDX-License-Identifier: Apache-2.0
#include "job/host.h"

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"

namespace tessera {

MemberInfo describe_this_process() {
  MemberInfo info;
  char host[256] = {};
  info.host = gethostname(host, sizeof host - 1) == 0 ? host : "unknown-host";
  // Where /proc is hidden, hosts are told apart by name.
  std::ifstream("/proc/sys/kernel/random/boot_id") >> info.boot_id;
  if (info.boot_id.empty()) info.boot_id = info.host;
  info.pid = getpid();
  std::random_device random;
  info.incarnation = uint64_t{random()} << 32 | random();
  return info;
}

std::string random_token() {
  std::random_device random;
  std::string token;
  for (int i = 0; i < 4; ++i) absl::StrAppend(&token, absl::Hex(random(), absl::kZeroPad8));
  return token;
}

}  // namespace tessera
