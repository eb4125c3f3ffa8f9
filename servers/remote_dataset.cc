// SPDX-License-Identifier: Apache-2.0
#include "servers/remote_dataset.h"

#include "servers/handle_access.h"

namespace tessera::distribute {

const std::vector<input::TensorSpec>& RemoteDataset::element_spec() const { return place_->spec; }

}  // namespace tessera::distribute
