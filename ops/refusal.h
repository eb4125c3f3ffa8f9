// SPDX-License-Identifier: Apache-2.0
//
// Errors of calls of operations.
#ifndef TESSERA_OPS_REFUSAL_H_
#define TESSERA_OPS_REFUSAL_H_

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tessera::ops {

// InvalidArgument "name: texts".
template <class... Texts>
Status refusal(const char* name, const Texts&... texts) {
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", texts...));
}

// `dim` counted from the end where it is negative. InvalidArgument "sum: dim 2 is out of range for
// a tensor of rank 2".
StatusOr<int> checked_dim(const char* name, int64_t dim, int64_t rank);

}  // namespace tessera::ops

#endif  // TESSERA_OPS_REFUSAL_H_
