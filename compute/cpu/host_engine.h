// SPDX-License-Identifier: Apache-2.0
//
// host_engine(): the Engine of devices that use memory of the host: the kernels of this folder, on
// the thread that calls.
//
// Clients of one job have to compute with one Arithmetic. Draws and optimizers give equal bits with
// every Arithmetic.
#ifndef TESSERA_COMPUTE_CPU_HOST_ENGINE_H_
#define TESSERA_COMPUTE_CPU_HOST_ENGINE_H_

#include "compute/engine.h"
#include "device/arithmetic.h"

namespace tessera::kernels {

// Engines have no state, and live as long as the process. Requires an Arithmetic that this host can
// compute with.
Engine& host_engine(const Arithmetic& arithmetic);

}  // namespace tessera::kernels

#endif  // TESSERA_COMPUTE_CPU_HOST_ENGINE_H_
