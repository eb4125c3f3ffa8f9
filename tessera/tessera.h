// SPDX-License-Identifier: Apache-2.0
//
// Tessera: SPMD programs on sharded tensors. This header includes the whole API except the two
// headers that need another library, tessera/eigen.h and tessera/mpi.h. Names are in the namespace
// tessera and in the namespaces below it that the list names. Signatures use types of Abseil, such
// as absl::Duration and absl::Span, whose headers these include.
//
// Where to look for what:
//
//   to join a job, arrange its devices,
//   make, move and read tensors, look at
//   relayouts and draw them                  tessera/core.h; as Eigen tensors: tessera/eigen.h
//   to call collectives                      tessera/collectives.h
//   to compute with tensors, take gradients, tessera/ops.h, in the namespaces tessera::ops and
//   draw random numbers                      tessera::random
//   to train                                 tessera/nn.h, in tessera::nn
//   to read data sets                        tessera/input.h, in tessera::input
//   to read and write files of other tools,
//   and share shards with other libraries    tessera/files.h
//   to keep the values of a run              tessera/checkpoint.h, in tessera::checkpoint
//   to think in replicas                     tessera/distribute.h, in tessera::distribute
//   to run functions on workers, with
//   variables on parameter servers           tessera/servers.h, in tessera::distribute
//   inside an MPI program                    tessera/mpi.h, which needs its MPI
//   to know the version                      tessera/version.h
//
// A program includes only headers of the folder tessera/: which header below them declares a name
// may change. The namespaces internal, host, cuda and nccl inside tessera, and what is marked
// "Internal" in these headers, are not part of the API: they change without notice.
#ifndef TESSERA_TESSERA_TESSERA_H_
#define TESSERA_TESSERA_TESSERA_H_

#include "tessera/checkpoint.h"
#include "tessera/collectives.h"
#include "tessera/core.h"
#include "tessera/distribute.h"
#include "tessera/files.h"
#include "tessera/input.h"
#include "tessera/nn.h"
#include "tessera/ops.h"
#include "tessera/servers.h"
#include "tessera/version.h"

#endif  // TESSERA_TESSERA_TESSERA_H_
