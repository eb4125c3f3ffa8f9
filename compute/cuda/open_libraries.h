// SPDX-License-Identifier: Apache-2.0
//
// open_libraries: the CUDA runtime of this machine, and what computes on its GPUs.
#ifndef TESSERA_COMPUTE_CUDA_OPEN_LIBRARIES_H_
#define TESSERA_COMPUTE_CUDA_OPEN_LIBRARIES_H_

#include <memory>

#include "base/status.h"
#include "compute/cuda/math_api.h"

namespace tessera::cuda {

// The toolkit's functions. The errors are those of open_api().
StatusOr<std::shared_ptr<const Libraries>> open_libraries();

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_CUDA_OPEN_LIBRARIES_H_
