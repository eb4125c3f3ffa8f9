// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator/grpc_log.h"

#include <grpc/support/log.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

// A failed assertion of gRPC ends the process right after its line: without it the cause is lost.
void write_assertions(gpr_log_func_args* args) {
  if (!absl::StartsWith(args->message, "assertion failed")) return;
  std::fprintf(stderr, "%s:%d: gRPC: %s\n", args->file, args->line, args->message);
}

}  // namespace

void quiet_grpc_log() {
  if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function(write_assertions);
}

Status no_grpc_server(absl::string_view subject, absl::string_view address) {
  return absl::InternalError(absl::StrCat(
      "gRPC does not start ", subject, " at ", address,
      "; see its log (GRPC_VERBOSITY=ERROR), and the limits of threads and memory (ulimit -u, "
      "-v)"));
}

}  // namespace tessera
