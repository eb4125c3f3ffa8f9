// SPDX-License-Identifier: Apache-2.0
//
// Functions on workers, with variables on parameter servers, in the namespace
// tessera::distribute.
//
//   on the coordinator                       servers/cluster_coordinator.h,
//                                            servers/remote_dataset.h, servers/remote_variable.h,
//                                            servers/partitioner.h
//   on workers and parameter servers         servers/server.h, servers/function_registry.h,
//                                            servers/worker_context.h
#ifndef TESSERA_TESSERA_SERVERS_H_
#define TESSERA_TESSERA_SERVERS_H_

#include "servers/cluster_coordinator.h"
#include "servers/function_registry.h"
#include "servers/partitioner.h"
#include "servers/remote_dataset.h"
#include "servers/remote_variable.h"
#include "servers/server.h"
#include "servers/worker_context.h"
#include "tessera/input.h"
#include "tessera/nn.h"

#endif  // TESSERA_TESSERA_SERVERS_H_
