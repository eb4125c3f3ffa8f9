// SPDX-License-Identifier: Apache-2.0
//
// The core: to join a job, to arrange its devices, and to make, move and read tensors.
//
//   to join a job, or start one              dtensor/client.h, dtensor/spawn.h
//   to learn from a launcher or a cluster
//   manager which client this process is     job/cluster/cluster.h
//   to arrange devices along named axes      mesh/mesh.h; a device is in device/device.h
//   to say how a tensor is split             layout/layout.h
//   to make, move and read tensors           dtensor/dtensor.h; parts of one: dtensor/index.h
//   to run a function on local shards        dtensor/local_map.h
//   to move a tensor to another layout       dtensor/relayout.h
//   to look at a relayout before it runs     relayout/plan.h, relayout/plan_step.h, for links of
//                                            relayout/topology.h
//   to draw layouts and plans                visualize/visualize.h, visualize/plan_flow.h
//   for element types, shapes, dims, arrays  base/dtype.h, base/reduce_op.h, base/shape.h,
//   of the host and errors                   base/dims.h, base/host_array.h, base/status.h
#ifndef TESSERA_TESSERA_CORE_H_
#define TESSERA_TESSERA_CORE_H_

#include "base/dims.h"
#include "base/dtype.h"
#include "base/host_array.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "device/device.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/index.h"
#include "dtensor/local_map.h"
#include "dtensor/relayout.h"
#include "dtensor/spawn.h"
#include "job/cluster/cluster.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "relayout/plan.h"
#include "relayout/plan_step.h"
#include "relayout/topology.h"
#include "visualize/plan_flow.h"
#include "visualize/visualize.h"

#endif  // TESSERA_TESSERA_CORE_H_
