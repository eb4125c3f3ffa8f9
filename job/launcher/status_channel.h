// SPDX-License-Identifier: Apache-2.0
//
// Status channel: a client reports to the launcher why it is about to end.
//
// tessera_run gives each client one end of a socket and its number in TESSERA_STATUS_FD. The
// library writes the Status of a fatal error there, and the launcher puts it into its report, so
// that a reader need not find it in the output of many clients.
#ifndef TESSERA_JOB_LAUNCHER_STATUS_CHANNEL_H_
#define TESSERA_JOB_LAUNCHER_STATUS_CHANNEL_H_

#include <string>

#include "base/status.h"

namespace tessera {

// The launcher's name for the variable that holds the descriptor.
inline constexpr char kStatusFdVariable[] = "TESSERA_STATUS_FD";

// Sends `status` to the launcher, cut to 4096 bytes. The launcher keeps the first status that a
// client sends. Never blocks and never fails: does nothing where the status is OK, where
// TESSERA_STATUS_FD is not set, or where that descriptor is not a status channel (a descriptor that
// was closed and used again for something else is left alone). Thread-safe.
void report_fatal_status(const Status& status);

// The launcher's end: removes one waiting message from `fd`; empty if there is none.
std::string receive_fatal_status(int fd);

}  // namespace tessera

#endif  // TESSERA_JOB_LAUNCHER_STATUS_CHANNEL_H_
