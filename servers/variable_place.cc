// SPDX-License-Identifier: Apache-2.0
#include "servers/variable_place.h"

namespace tessera::distribute::internal {

int64_t VariablePlace::shard_bytes(int shard) const {
  Shape shard_shape = shape;
  if (!shard_shape.empty()) shard_shape[0] = rows[shard];
  return num_bytes(shard_shape, dtype);
}

}  // namespace tessera::distribute::internal
