// SPDX-License-Identifier: Apache-2.0
//
// Tessera: SPMD programs on sharded tensors. One header, one target, //:tessera.
//
//   base/status.h                 Status, StatusOr, TESSERA_RETURN_IF_ERROR,
//   TESSERA_ASSIGN_OR_RETURN base/dtype.h, reduce_op.h     DType, ReduceOp base/shape.h Shape; Box,
//   a part of an index space mesh/mesh.h                   Mesh: named axes over the devices of all
//   clients; barrier() layout/layout.h               Layout: how one tensor is split over a Mesh
//   dtensor/client.h              Client: this process in the job; create_mesh()
//   dtensor/dtensor.h             DTensor: how to make and read one
//   dtensor/relayout.h            relayout(): the same value under another layout
//   dtensor/local_map.h           local_map(): a function of yours on the shards of each device
//   dtensor/eigen.h               eigen(): a shard as a tensor of Eigen's
//   dtensor/spawn.h               spawn(): start the clients from within a program
//   collectives/group.h           Group: collectives and messages on plain memory
//   relayout/plan.h, plan_step.h  plan_relayout(), RelayoutPlan, PlanStep: what a relayout will do
//   visualize/visualize.h         visualize(), visualize_svg(): which device holds what of a layout
//   visualize/plan_flow.h         visualize_svg(), flows_of(): which bytes a plan moves, and where
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
#include "dtensor/relayout.h"
#include "dtensor/spawn.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "relayout/plan.h"
#include "relayout/plan_step.h"
#include "visualize/plan_flow.h"
#include "visualize/visualize.h"

#endif  // TESSERA_TESSERA_H_
