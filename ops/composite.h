// SPDX-License-Identifier: Apache-2.0
//
// What operations that are made of others have in common. Internal to ops/.
#ifndef TESSERA_OPS_COMPOSITE_H_
#define TESSERA_OPS_COMPOSITE_H_

#include "dtensor/dtensor.h"
#include "ops/out.h"
#include "ops/reductions.h"

namespace tessera::ops {

// The same value under the same dims with no partial axes.
DTensor without_partial(const DTensor& x);
// The result of a composition: under `out`, or without partial axes.
DTensor finish(DTensor x, const Out& out);
// The largest elements along the dims, which stay with size 1, within the finite numbers: what is
// subtracted from exponents.
DTensor finite_max(const DTensor& x, const Dims& dims);

}  // namespace tessera::ops

#endif  // TESSERA_OPS_COMPOSITE_H_
