// SPDX-License-Identifier: Apache-2.0
//
// Tessera: SPMD programs on sharded tensors. One header, one target, //:tessera.
#ifndef TESSERA_TESSERA_H_
#define TESSERA_TESSERA_H_

#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "collectives/group.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/eigen.h"
#include "dtensor/local_map.h"
#include "dtensor/spawn.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "relayout/plan.h"

#endif  // TESSERA_TESSERA_H_
