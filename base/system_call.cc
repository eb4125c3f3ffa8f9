// SPDX-License-Identifier: Apache-2.0
#include "base/system_call.h"

#include <errno.h>

#include <cstring>

#include "absl/strings/str_cat.h"

namespace tessera {

Status failed_call(const NeededCall& call, int error, Status otherwise) {
  if (error != ENOSYS && error != EPERM) return otherwise;
  return absl::UnimplementedError(
      absl::StrCat("this system refuses the system call ", call.name, ": ", std::strerror(error),
                   "; Tessera ", call.purpose, " by it; use ", call.kernel,
                   " or later, and a sandbox (seccomp, gVisor) that allows the call"));
}

Status no_resource(absl::string_view what) {
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot make ", what, ": ", std::strerror(errno),
                   "; start fewer clients or raise the limit (ulimit -n, ulimit -u)"));
}

}  // namespace tessera
