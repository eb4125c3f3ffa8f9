// SPDX-License-Identifier: Apache-2.0
#include "input/input_context.h"

#include "absl/strings/str_cat.h"

namespace tessera::distribute {

StatusOr<int64_t> InputContext::get_per_replica_batch_size(int64_t global_batch_size) const {
  if (num_replicas_in_sync < 1) {
    return absl::InvalidArgumentError(absl::StrCat("num_replicas_in_sync is ", num_replicas_in_sync,
                                                   "; an input context has 1 or more"));
  }
  if (global_batch_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the global batch size is ", global_batch_size, "; give at least 1"));
  }
  if (global_batch_size % num_replicas_in_sync != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the global batch size ", global_batch_size, " is not divisible by the ",
                     num_replicas_in_sync, " replicas; give a multiple of ", num_replicas_in_sync));
  }
  return global_batch_size / num_replicas_in_sync;
}

}  // namespace tessera::distribute
