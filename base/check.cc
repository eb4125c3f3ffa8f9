// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace tessera::internal {

void check_failed(const char* file, int line, const char* condition, const char* message) {
  std::fprintf(stderr, "%s:%d: check failed: %s (%s)\n", file, line, condition, message);
  std::abort();
}

}  // namespace tessera::internal
