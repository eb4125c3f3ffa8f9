// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/toolkit_status.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"

namespace tessera::cuda {
namespace {

absl::StatusCode code_of(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::StatusCode::kResourceExhausted;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInitializationError:
    case cudaErrorStubLibrary:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
      return absl::StatusCode::kFailedPrecondition;
    case cudaErrorDevicesUnavailable:
    case cudaErrorECCUncorrectable:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchTimeout:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

Status toolkit_status(int error, absl::string_view function) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();  // what is not sticky must not come out of the next launch
  const auto code = static_cast<cudaError_t>(error);
  return Status(code_of(code), absl::StrCat(function, ": ", cudaGetErrorName(code), ", ",
                                            cudaGetErrorString(code)));
}

}  // namespace tessera::cuda
