// SPDX-License-Identifier: Apache-2.0
//
// host_engine(): the Engine of devices that use memory of the host: the kernels of this folder, on
// the thread that calls.
#ifndef TESSERA_OPS_KERNELS_HOST_ENGINE_H_
#define TESSERA_OPS_KERNELS_HOST_ENGINE_H_

#include "device/engine.h"

namespace tessera::kernels {

// It has no state.
Engine& host_engine();

}  // namespace tessera::kernels

#endif  // TESSERA_OPS_KERNELS_HOST_ENGINE_H_
