// SPDX-License-Identifier: Apache-2.0
//
// Tessera: SPMD programs on sharded tensors. One header and one target, //:tessera. Names are in
// the namespace tessera and in the ones below it that the list names. Not here: the header
// of the target //tessera:mpi, which needs MPI. Signatures use types of Abseil, such as
// absl::Duration and absl::Span, whose headers this one includes.
//
// Where to look for what:
//
//   to join a job, or start one              dtensor/client.h, dtensor/spawn.h
//   to learn from a launcher or a cluster
//   manager which client this process is     job/cluster/cluster.h
//   to arrange devices along named axes      mesh/mesh.h; a device is in device/device.h
//   to say how a tensor is split             layout/layout.h
//   to make, move and read tensors           dtensor/dtensor.h, ops/creation.h; as Eigen tensors:
//                                            dtensor/eigen.h
//   to share shards with other libraries     files/dlpack.h
//   to read and write files of other tools   files/array_files.h
//   to keep the values of a run              checkpoint/checkpoint.h, checkpoint/pending.h,
//                                            checkpoint/checkpointer.h, in namespace
//                                            tessera::checkpoint
//   to run a function on local shards        dtensor/local_map.h; with gradients
//                                            ops/local_gradient.h
//   to compute with tensors                  ops/pointwise.h, ops/reductions.h, ops/contract.h,
//                                            ops/shapes.h, ops/nn.h, ops/elementwise.h, in
//                                            namespace tessera::ops; gradients: ops/tape.h; parts
//                                            of a tensor: dtensor/index.h
//   to train                                 ops/variable.h, nn/parameters.h, nn/optimizer.h; the
//                                            parameters in namespace tessera::nn
//   to draw random numbers                   ops/random.h, in namespace tessera::random
//   to read data sets                        input/dataset.h, input/source.h,
//                                            input/iterator_state.h; as tensors: input/loader.h,
//                                            how far they are read: input/progress.h,
//                                            in namespace tessera::input
//   to run functions on workers, with        servers/cluster_coordinator.h, servers/server.h,
//   variables on parameter servers           servers/function_registry.h, servers/worker_context.h,
//                                            servers/remote_dataset.h, servers/remote_variable.h,
//                                            servers/partitioner.h, input/input_context.h, in
//                                            namespace tessera::distribute
//   to think in replicas                     distribute/strategy.h, distribute/options.h,
//                                            distribute/replica_context.h, distribute/variable.h,
//                                            distribute/values.h, distribute/dataset.h,
//                                            distribute/input_options.h,
//                                            distribute/cross_device_ops.h, in namespace
//                                            tessera::distribute
//   to call collectives                      collectives/group.h, on memory of device/device_span.h
//   to move a tensor to another layout       dtensor/relayout.h
//   to look at a relayout before it runs     relayout/plan.h, relayout/plan_step.h, for links of
//                                            relayout/topology.h
//   to draw layouts and plans                visualize/visualize.h, visualize/plan_flow.h
//   for element types, shapes, dims, arrays  base/dtype.h, base/reduce_op.h, base/shape.h,
//   of the host and errors                   base/dims.h, base/host_array.h, base/status.h
//
// The namespaces internal, host, cuda and nccl inside tessera, and what is marked "Internal" in
// these headers, are not part of the API: they change without notice.
#ifndef TESSERA_TESSERA_H_
#define TESSERA_TESSERA_H_

#include "base/dims.h"
#include "base/dtype.h"
#include "base/host_array.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpointer.h"
#include "checkpoint/pending.h"
#include "collectives/group.h"
#include "device/device.h"
#include "device/device_span.h"
#include "distribute/cross_device_ops.h"
#include "distribute/dataset.h"
#include "distribute/input_options.h"
#include "distribute/options.h"
#include "distribute/replica_context.h"
#include "distribute/strategy.h"
#include "distribute/values.h"
#include "distribute/variable.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/eigen.h"
#include "dtensor/local_map.h"
#include "dtensor/relayout.h"
#include "dtensor/spawn.h"
#include "files/array_files.h"
#include "files/dlpack.h"
#include "input/dataset.h"
#include "input/input_context.h"
#include "input/iterator_state.h"
#include "input/loader.h"
#include "input/progress.h"
#include "input/source.h"
#include "job/cluster/cluster.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "nn/optimizer.h"
#include "nn/parameters.h"
#include "ops/contract.h"
#include "ops/creation.h"
#include "ops/elementwise.h"
#include "ops/local_gradient.h"
#include "ops/nn.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reductions.h"
#include "ops/shapes.h"
#include "ops/tape.h"
#include "ops/variable.h"
#include "relayout/plan.h"
#include "relayout/plan_step.h"
#include "relayout/topology.h"
#include "servers/cluster_coordinator.h"
#include "servers/function_registry.h"
#include "servers/partitioner.h"
#include "servers/remote_dataset.h"
#include "servers/remote_variable.h"
#include "servers/server.h"
#include "servers/worker_context.h"
#include "visualize/plan_flow.h"
#include "visualize/visualize.h"

#endif  // TESSERA_TESSERA_H_
