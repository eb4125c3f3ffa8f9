// SPDX-License-Identifier: Apache-2.0
//
// Collectives of groups of devices: collectives/group.h, on memory of device/device_span.h.
#ifndef TESSERA_TESSERA_COLLECTIVES_H_
#define TESSERA_TESSERA_COLLECTIVES_H_

#include "collectives/group.h"
#include "device/device_span.h"
#include "tessera/core.h"

#endif  // TESSERA_TESSERA_COLLECTIVES_H_
