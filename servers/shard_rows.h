// SPDX-License-Identifier: Apache-2.0
//
// shard_rows(): the sizes of the shards into which a Partitioner cuts a variable. Internal to
// servers/.
//
// Pure, except that it calls the Partitioner, which may be a function of the program.
#ifndef TESSERA_SERVERS_SHARD_ROWS_H_
#define TESSERA_SERVERS_SHARD_ROWS_H_

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "servers/partitioner.h"

namespace tessera::distribute::internal {

// InvalidArgument for a partitioner of partitioner.h that was made with a value below 1.
Status validate(const Partitioner& partitioner);
// The rows of dim 0 of each shard, in order: at least one shard; {1} for a scalar. An empty
// partitioner does not cut. InvalidArgument where it asks for fewer than one shard; an exception of
// it becomes an error.
StatusOr<std::vector<int64_t>> shard_rows(const Partitioner& partitioner, const Shape& shape,
                                          DType dtype, int num_ps);

}  // namespace tessera::distribute::internal

#endif  // TESSERA_SERVERS_SHARD_ROWS_H_
