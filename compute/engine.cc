// SPDX-License-Identifier: Apache-2.0
#include "compute/engine.h"

#include "absl/strings/str_cat.h"

namespace tessera::kernels {

Status index_error(int64_t index, int64_t number, int64_t whole) {
  return absl::OutOfRangeError(absl::StrCat("index ", index, ", number ", number,
                                            " of this device, is not in a dim of ", whole,
                                            " elements"));
}

}  // namespace tessera::kernels
