// SPDX-License-Identifier: Apache-2.0
//
// Partitioners: decide into how many shards a variable on parameter servers is cut.
//
//   max_size(16)({13, 1}, DType::kFloat32, 2)        4: shards of 3, 3, 3 and 4 rows
//
// Only dim 0 is cut, by the split rule of layouts (layout/layout.h). The shards of all variables
// are assigned to the parameter servers in turn.
//
// Values; safe to call from any thread. TF: tf.distribute.experimental.partitioners.
#ifndef TESSERA_SERVERS_PARTITIONER_H_
#define TESSERA_SERVERS_PARTITIONER_H_

#include <cstdint>
#include <functional>
#include <optional>

#include "base/dtype.h"
#include "base/public.h"
#include "base/shape.h"

namespace TESSERA_PUBLIC tessera {
namespace distribute {

// Returns the number of shards of a variable, at most the size of dim 0 (larger results count as
// that size). Not called for a scalar or a tensor without elements, which is one shard.
using Partitioner = std::function<int(const Shape& shape, DType dtype, int num_ps)>;

// `n` shards. TF: FixedShardsPartitioner.
Partitioner fixed_shards(int n);
// As many shards as possible, at most max_shards, each with at least min_shard_bytes. TF:
// MinSizePartitioner, whose shards may be smaller than the minimum.
Partitioner min_size(int64_t min_shard_bytes = 256 << 10, int max_shards = 1);
// As few shards as possible, at most max_shards, each with at most max_shard_bytes, but at least
// one row. TF: MaxSizePartitioner.
Partitioner max_size(int64_t max_shard_bytes, std::optional<int> max_shards = {});

}  // namespace distribute
}  // namespace tessera

#endif  // TESSERA_SERVERS_PARTITIONER_H_
