// SPDX-License-Identifier: Apache-2.0
#include "base/host_array.h"

#include <stdexcept>

#include "absl/strings/str_cat.h"

namespace tessera {

Status HostArray::validate() const {
  TESSERA_RETURN_IF_ERROR(validate_shape(shape, dtype));
  const int64_t needed = num_bytes(shape, dtype);
  if (static_cast<int64_t>(bytes.size()) == needed) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("an array ", dtype_name(dtype), " ",
                                                 shape_to_string(shape), " needs ", needed,
                                                 " bytes, and has ", bytes.size()));
}

void HostArray::refuse_view(DType asked) const {
  // NOTIDY(banned): a span has no place for an error, and an empty one ends the process when used
  throw std::invalid_argument(absl::StrCat("an array ", dtype_name(dtype), " ",
                                           shape_to_string(shape), " was viewed as ",
                                           dtype_name(asked), "; view it as its own dtype"));
}

}  // namespace tessera
