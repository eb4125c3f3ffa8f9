// SPDX-License-Identifier: Apache-2.0
//
// Partitioners: into how many shards a variable on parameter servers is cut.
//
//   max_size(16)({13, 1}, DType::kFloat32, 2)        4: shards of 3, 3, 3 and 4 rows
//
// Only dim 0 is cut, by the split rule of layouts (layout/layout.h). The shards of all variables
// are dealt to the parameter servers in turn.
//
// Values; safe to call from any thread. TF: tf.distribute.experimental.partitioners.
#ifndef TESSERA_SERVERS_PARTITIONER_H_
#define TESSERA_SERVERS_PARTITIONER_H_

#include <cstdint>
#include <functional>
#include <optional>

#include "base/dtype.h"
#include "base/shape.h"

namespace tessera::distribute {

// How many shards a variable is cut into. More than dim 0 has elements count as that many; a scalar
// and a tensor without elements are one shard and are not asked about.
using Partitioner = std::function<int(const Shape& shape, DType dtype, int num_ps)>;

// `n` shards. TF: FixedShardsPartitioner.
Partitioner fixed_shards(int n);
// As many shards as possible, at most max_shards, so that none has less than min_shard_bytes. TF:
// MinSizePartitioner, whose shards may be smaller than the minimum.
Partitioner min_size(int64_t min_shard_bytes = 256 << 10, int max_shards = 1);
// As few shards as possible, at most max_shards, so that none has more than max_shard_bytes; a
// shard has one row at least. TF: MaxSizePartitioner.
Partitioner max_size(int64_t max_shard_bytes, std::optional<int> max_shards = {});

}  // namespace tessera::distribute

#endif  // TESSERA_SERVERS_PARTITIONER_H_
