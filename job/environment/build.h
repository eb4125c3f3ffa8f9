// SPDX-License-Identifier: Apache-2.0
//
// build_text: the version of Tessera in a process.
//
// Clients of one job, their coordinator and tessera_run read each other's data: messages of the
// coordinator, letters between hosts, and records in shared memory. So all of them must have one
// build_text(), which is compared when a client joins.
#ifndef TESSERA_JOB_ENVIRONMENT_BUILD_H_
#define TESSERA_JOB_ENVIRONMENT_BUILD_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tessera/version.h"

namespace tessera {

inline constexpr absl::string_view kVersion = TESSERA_VERSION;
// Incremented by each change of the data that processes exchange.
inline constexpr int kProtocol = 4;

// "Tessera 0.1.0, protocol 4".
inline std::string build_text() {
  return absl::StrCat("Tessera ", kVersion, ", protocol ", kProtocol);
}

// The answer of a program to --version: "tessera_run (Tessera) 0.1.0, protocol 4" and a line end.
inline std::string version_text(absl::string_view program) {
  return absl::StrCat(program, " (Tessera) ", kVersion, ", protocol ", kProtocol, "\n");
}

// Advice where a process cannot read what another process of its job wrote.
inline constexpr absl::string_view kOneBuildAdvice =
    "build all programs of a job from one Tessera; where they are, report this as a bug of Tessera";

}  // namespace tessera

#endif  // TESSERA_JOB_ENVIRONMENT_BUILD_H_
