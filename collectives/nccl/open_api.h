// SPDX-License-Identifier: Apache-2.0
//
// open_api: the NCCL of this machine.
//
// Programs do not link libnccl. They load it when GPUs of several clients first form a group. So
// one program runs on machines with and without NCCL, and without a GPU, and a machine with GPUs
// can bring its own, newer NCCL. A test replaces the check of a linker: every name that is loaded
// is in the library (contract_test.cc).
#ifndef TESSERA_COLLECTIVES_NCCL_OPEN_API_H_
#define TESSERA_COLLECTIVES_NCCL_OPEN_API_H_

#include <memory>
#include <string>

#include "base/status.h"
#include "collectives/nccl/api.h"

namespace tessera::nccl {

// Loads the library, once per process. Unimplemented, with what to install, if it is missing or too
// old, and in a build without NCCL's header.
StatusOr<std::shared_ptr<Api>> open_api(const std::string& library = "libnccl.so.2");

// Whether this build has the part that calls NCCL.
bool has_nccl();

}  // namespace tessera::nccl

#endif  // TESSERA_COLLECTIVES_NCCL_OPEN_API_H_
