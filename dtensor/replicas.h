// SPDX-License-Identifier: Apache-2.0
//
// Replicas: whether the devices that hold the same part of a tensor have a copy each.
#ifndef TESSERA_DTENSOR_REPLICAS_H_
#define TESSERA_DTENSOR_REPLICAS_H_

#include "base/public.h"

namespace TESSERA_PUBLIC tessera {

// kShared: devices of one host that get the same part of the tensor read one copy of it. A gather
// then writes the tensor once, not once per device, and holds that much less memory. Equal on all
// clients. An equivalent layout shares only buffers that the source shared.
enum class Replicas { kOwn, kShared };

}  // namespace tessera

#endif  // TESSERA_DTENSOR_REPLICAS_H_
