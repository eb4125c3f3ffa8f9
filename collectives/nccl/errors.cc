// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/errors.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tessera::nccl {
namespace {

struct Advice {
  const char* words;
  const char* text;
  absl::StatusCode code;
};

constexpr Advice kAdvice[] = {
    {"Duplicate GPU",
     "clients share a GPU: give each one of its own, or, for tests, set "
     "TESSERA_SHARE_GPUS=1",
     absl::StatusCode::kFailedPrecondition},
    // shmutils.cc of NCCL.
    {"shared memory segment",
     "/dev/shm is too small: each communicator takes 33 MiB of it on every rank that uses the "
     "network; mount it larger (mount -o remount,size=32G /dev/shm, or docker run --shm-size=32g)",
     absl::StatusCode::kResourceExhausted},
};

}  // namespace

Status error_of(absl::StatusCode code, absl::string_view function, absl::string_view text,
                absl::string_view last) {
  const std::string message = absl::StrCat(function, ": ", text, ": ", last);
  for (const Advice& advice : kAdvice) {
    if (!absl::StrContains(last, advice.words)) continue;
    return Status(advice.code, absl::StrCat(message, "; ", advice.text));
  }
  return Status(code, message);
}

}  // namespace tessera::nccl
