// SPDX-License-Identifier: Apache-2.0
#include "servers/remote_variable.h"

#include "servers/variable_place.h"

namespace tessera::distribute {

const std::string& RemoteVariable::name() const { return place_->name; }
DType RemoteVariable::dtype() const { return place_->dtype; }
const Shape& RemoteVariable::shape() const { return place_->shape; }
int RemoteVariable::num_shards() const { return static_cast<int>(place_->ps.size()); }

}  // namespace tessera::distribute
