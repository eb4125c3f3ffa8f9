// SPDX-License-Identifier: Apache-2.0
//
// open_libraries() of a build that found no CUDA toolkit.
#include <memory>

#include "compute/cuda/open_libraries.h"
#include "device/cuda/open_api.h"

namespace tessera::cuda {

StatusOr<std::shared_ptr<const Libraries>> open_libraries() { return open_api().status(); }

}  // namespace tessera::cuda
