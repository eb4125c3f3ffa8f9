// SPDX-License-Identifier: Apache-2.0
//
// Errors of system calls that fail because a resource of the host is used up, because this kernel
// lacks the call, or because a sandbox forbids it.
#ifndef TESSERA_BASE_SYSTEM_CALL_H_
#define TESSERA_BASE_SYSTEM_CALL_H_

#include "absl/strings/string_view.h"
#include "base/status.h"

namespace tessera {

// A system call that has no substitute in Tessera.
struct NeededCall {
  absl::string_view name;
  absl::string_view kernel;   // the first version that has the call
  absl::string_view purpose;  // "waits for the end of a process"
};
inline constexpr NeededCall kMemfdCreate = {"memfd_create", "Linux 3.17",
                                            "makes the memory that clients of a host share"};
inline constexpr NeededCall kPidfdOpen = {"pidfd_open", "Linux 5.3",
                                          "waits for the end of a process"};

// `otherwise`, unless the call failed with ENOSYS or EPERM: then Unimplemented, which names what
// the system refuses and what Tessera needs.
Status failed_call(const NeededCall& call, int error, Status otherwise);

// ResourceExhausted, by errno: "cannot make a pipe: Too many open files; start fewer clients ...".
Status no_resource(absl::string_view what);

}  // namespace tessera

#endif  // TESSERA_BASE_SYSTEM_CALL_H_
