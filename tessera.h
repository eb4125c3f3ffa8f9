// SPDX-License-Identifier: Apache-2.0
//
// Until 1.0.0, for programs that include this name; see tessera/tessera.h.
#ifndef TESSERA_TESSERA_H_
#define TESSERA_TESSERA_H_

#include "tessera/tessera.h"

#endif  // TESSERA_TESSERA_H_
