// SPDX-License-Identifier: Apache-2.0
//
// DTensor::to_host() without the copy into a vector: for code that sends a tensor elsewhere.
#ifndef TESSERA_DTENSOR_TO_HOST_H_
#define TESSERA_DTENSOR_TO_HOST_H_

#include "base/status.h"
#include "dtensor/dtensor.h"

namespace tessera::internal {

// The whole value in memory of the host, which the result keeps. A copy only where no device of
// this client has all of it in such memory. Collective, and fails, as DTensor::to_host().
StatusOr<RawShard> to_host_raw(const DTensor& tensor);

}  // namespace tessera::internal

#endif  // TESSERA_DTENSOR_TO_HOST_H_
