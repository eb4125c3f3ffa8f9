// SPDX-License-Identifier: Apache-2.0
//
// The dtypes of TensorInfo::dtype: dtypes of Tessera by dtype_name(), and dtypes that only files of
// other tools have. Pure; safe to call from any thread. Internal to checkpoint/.
#ifndef TESSERA_CHECKPOINT_DTYPES_H_
#define TESSERA_CHECKPOINT_DTYPES_H_

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "base/status.h"
#include "checkpoint/info.h"

namespace tessera::checkpoint::internal {

// Bits of an element; nothing for a name that is no dtype.
std::optional<int64_t> dtype_bits(absl::string_view dtype);

// The dtype under which the tensor is restored. Unimplemented, naming tensor and dtype, for a dtype
// that Tessera does not have; InvalidArgument for a name that is no dtype.
StatusOr<DType> dtype_of(const TensorInfo& tensor);

}  // namespace tessera::checkpoint::internal

#endif  // TESSERA_CHECKPOINT_DTYPES_H_
