// SPDX-License-Identifier: Apache-2.0
//
// Strategies, in the namespace tessera::distribute: replicas with their values, variables and data
// sets.
//
//   to make a strategy and run on replicas   distribute/strategy.h, distribute/options.h,
//                                            distribute/replica_context.h, distribute/values.h
//   to keep variables                        distribute/variable.h
//   to read data sets                        distribute/dataset.h, distribute/input_options.h
//   to reduce over replicas                  distribute/cross_device_ops.h
#ifndef TESSERA_TESSERA_DISTRIBUTE_H_
#define TESSERA_TESSERA_DISTRIBUTE_H_

#include "distribute/cross_device_ops.h"
#include "distribute/dataset.h"
#include "distribute/input_options.h"
#include "distribute/options.h"
#include "distribute/replica_context.h"
#include "distribute/strategy.h"
#include "distribute/values.h"
#include "distribute/variable.h"
#include "tessera/input.h"
#include "tessera/nn.h"

#endif  // TESSERA_TESSERA_DISTRIBUTE_H_
