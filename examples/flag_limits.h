// SPDX-License-Identifier: Apache-2.0
//
// Limits of numbers that examples take from the command line.
#ifndef TESSERA_EXAMPLES_FLAG_LIMITS_H_
#define TESSERA_EXAMPLES_FLAG_LIMITS_H_

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tessera/tessera.h"

namespace tessera::examples {

// InvalidArgument, naming both, for a value of --`flag` below `least`.
inline Status check_at_least(int64_t least, absl::string_view flag, int64_t value) {
  if (value >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, " is ", value, "; it should be at least ", least));
}

}  // namespace tessera::examples

#endif  // TESSERA_EXAMPLES_FLAG_LIMITS_H_
