// SPDX-License-Identifier: Apache-2.0
//
// A client for launcher_test: reports a fatal status twice through the status channel and fails.
#include <cstdio>

#include "absl/status/status.h"
#include "job/launcher/status_channel.h"

int main() {
  tessera::report_fatal_status(absl::OkStatus());
  tessera::report_fatal_status(absl::UnavailableError("lost client 7"));
  tessera::report_fatal_status(absl::InternalError("a consequence"));
  std::puts("reported");
  return 8;
}
