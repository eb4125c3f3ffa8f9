// SPDX-License-Identifier: Apache-2.0
//
// toolkit_status: the errors of the CUDA runtime as a Status, as Api has them. Only in builds with
// a CUDA toolkit.
#ifndef TESSERA_DEVICE_CUDA_TOOLKIT_STATUS_H_
#define TESSERA_DEVICE_CUDA_TOOLKIT_STATUS_H_

#include "absl/strings/string_view.h"
#include "base/status.h"

namespace tessera::cuda {

// `error` is a cudaError_t, as a number; the message begins with the function's name. Clears the
// last error of the calling thread.
Status toolkit_status(int error, absl::string_view function);

}  // namespace tessera::cuda

#endif  // TESSERA_DEVICE_CUDA_TOOLKIT_STATUS_H_
