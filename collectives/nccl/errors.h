// SPDX-License-Identifier: Apache-2.0
//
// error_of: an error of NCCL as a Status, with advice where the message of NCCL is known.
//
//   error_of(StatusCode::kInternal, "NCCL", "unhandled system error", last)
//       RESOURCE_EXHAUSTED: NCCL: ...: Error while creating shared memory segment ...; /dev/shm ...
//
// NCCL keeps one last error for the process: the message may belong to another communicator.
#ifndef TESSERA_COLLECTIVES_NCCL_ERRORS_H_
#define TESSERA_COLLECTIVES_NCCL_ERRORS_H_

#include "absl/strings/string_view.h"
#include "base/status.h"

namespace tessera::nccl {

// `code` and `text` are from NCCL's result, and `last` is ncclGetLastError().
Status error_of(absl::StatusCode code, absl::string_view function, absl::string_view text,
                absl::string_view last);

}  // namespace tessera::nccl

#endif  // TESSERA_COLLECTIVES_NCCL_ERRORS_H_
