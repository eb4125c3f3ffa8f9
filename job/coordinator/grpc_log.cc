// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator/grpc_log.h"

#include <grpcpp/version_info.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"

// gRPC 1.65 and later log by Abseil.
#if GRPC_CPP_VERSION_MAJOR > 1 || GRPC_CPP_VERSION_MINOR >= 65
#define TESSERA_GRPC_LOGS_BY_ABSEIL
#include "absl/base/log_severity.h"
#include "absl/log/globals.h"
#else
#include <grpc/support/log.h>

#include <cstdio>

#include "absl/strings/match.h"
#endif

namespace tessera {
namespace {

#ifdef TESSERA_GRPC_LOGS_BY_ABSEIL
// The line of a failed assertion has the severity kFatal, which no level hides. A level that the
// program has chosen stays.
void show_only_assertions() {
  if (absl::MinLogLevel() != absl::LogSeverityAtLeast::kInfo) return;
  absl::SetMinLogLevel(absl::LogSeverityAtLeast::kFatal);
}
#else
// A failed assertion of gRPC ends the process right after its line: without it the cause is lost.
void write_assertions(gpr_log_func_args* args) {
  if (!absl::StartsWith(args->message, "assertion failed")) return;
  std::fprintf(stderr, "%s:%d: gRPC: %s\n", args->file, args->line, args->message);
}

void show_only_assertions() { gpr_set_log_function(write_assertions); }
#endif

}  // namespace

void quiet_grpc_log() {
  if (std::getenv("GRPC_VERBOSITY") == nullptr) show_only_assertions();
}

Status no_grpc_server(absl::string_view subject, absl::string_view address) {
  return absl::InternalError(absl::StrCat(
      "gRPC does not start ", subject, " at ", address,
      "; see its log (GRPC_VERBOSITY=ERROR), and the limits of threads and memory (ulimit -u, "
      "-v)"));
}

}  // namespace tessera
