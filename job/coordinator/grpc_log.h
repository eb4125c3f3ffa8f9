// SPDX-License-Identifier: Apache-2.0
//
// Limits what gRPC writes to the standard error of a user's program: by default only the reason for
// which it ends the process.
//
// gRPC logs errors that it also returns, and Tessera turns those into a Status. Its log lines
// beside that Status show no more, and some show metadata, which contains the job token. With
// GRPC_VERBOSITY set, all lines are printed.
#ifndef TESSERA_JOB_COORDINATOR_GRPC_LOG_H_
#define TESSERA_JOB_COORDINATOR_GRPC_LOG_H_

#include "absl/strings/string_view.h"
#include "base/status.h"

namespace tessera {

// Call before the first use of gRPC in a process. Does nothing if GRPC_VERBOSITY is set.
// Idempotent. It affects the whole process: a program's own use of gRPC too.
// - gRPC before 1.65: replaces a log function that the program has set with gpr_set_log_function,
//   because gRPC does not say whether there is one. A program with its own function also sets
//   GRPC_VERBOSITY, or sets the function after every connect.
// - gRPC 1.65 and later log by Abseil: sets Abseil's least severity to kFatal, which affects the
//   program's own LOG() too, unless the program has set another than kInfo.
void quiet_grpc_log();

// Internal: grpc::ServerBuilder::BuildAndStart() has returned null. gRPC gives its reason in its
// log alone. `subject`: "the coordinator".
Status no_grpc_server(absl::string_view subject, absl::string_view address);

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_GRPC_LOG_H_
