// SPDX-License-Identifier: Apache-2.0
//
// open_api: the CUDA runtime of this machine.
#ifndef TESSERA_DEVICE_CUDA_OPEN_API_H_
#define TESSERA_DEVICE_CUDA_OPEN_API_H_

#include <memory>

#include "base/status.h"
#include "device/cuda/api.h"

namespace tessera::cuda {

// The toolkit's functions. Unimplemented, with what to install, in a build without the toolkit;
// FailedPrecondition "no GPU: ..." on a machine without a GPU or a driver.
StatusOr<std::shared_ptr<Api>> open_api();

// Whether this build has the toolkit's part.
bool has_toolkit();

}  // namespace tessera::cuda

#endif  // TESSERA_DEVICE_CUDA_OPEN_API_H_
