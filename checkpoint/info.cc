// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/info.h"

#include <optional>

#include "base/math.h"
#include "checkpoint/dtypes.h"

namespace tessera::checkpoint {

int64_t TensorInfo::bytes() const {
  const std::optional<int64_t> bits = internal::dtype_bits(dtype);
  return bits.has_value() ? saturated(static_cast<__int128>(num_elements(shape)) * *bits / 8) : 0;
}

}  // namespace tessera::checkpoint
