// SPDX-License-Identifier: Apache-2.0
//
// BoxPull: one copy of Group::exchange().
#ifndef TESSERA_COLLECTIVES_BOX_PULL_H_
#define TESSERA_COLLECTIVES_BOX_PULL_H_

#include "base/public.h"
#include "base/shape.h"

namespace TESSERA_PUBLIC tessera {

// One copy: `box` out of the buffer of member `source`, which holds `source_box`.
struct BoxPull {
  int source = 0;  // position in the group; may be the member itself
  Box source_box;
  Box box;
};

}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_BOX_PULL_H_
