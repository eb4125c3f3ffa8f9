// SPDX-License-Identifier: Apache-2.0
//
// VariablePlace: a variable on parameter servers, and the places of its shards.
#ifndef TESSERA_SERVERS_VARIABLE_PLACE_H_
#define TESSERA_SERVERS_VARIABLE_PLACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/public.h"
#include "base/shape.h"

namespace tessera::distribute::internal {

// Shard k has rows[k] rows of dim 0, and is on ps[k].
struct TESSERA_INTERNAL VariablePlace {
  std::string name = {};
  DType dtype = DType::kFloat32;
  Shape shape = {};
  uint64_t chief = 0;  // the coordinator that made it
  int number = 0;      // its index among the coordinator's variables
  std::vector<int64_t> rows = {};
  std::vector<int> ps = {};

  // The size of one shard in bytes.
  int64_t shard_bytes(int shard) const;
};

}  // namespace tessera::distribute::internal

#endif  // TESSERA_SERVERS_VARIABLE_PLACE_H_
