// SPDX-License-Identifier: Apache-2.0
//
// Operations on tensors, in the namespace tessera::ops.
//
//   to compute with tensors                  ops/pointwise.h, ops/reductions.h, ops/contract.h,
//                                            ops/shapes.h, ops/nn.h, ops/elementwise.h
//   to take gradients                        ops/tape.h; of functions on local shards:
//                                            ops/local_gradient.h
//   to make tensors of numbers in order      ops/creation.h
//   to keep a tensor that changes            ops/variable.h
//   to draw random numbers                   ops/random.h, in namespace tessera::random
#ifndef TESSERA_TESSERA_OPS_H_
#define TESSERA_TESSERA_OPS_H_

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
#include "tessera/core.h"

#endif  // TESSERA_TESSERA_OPS_H_
