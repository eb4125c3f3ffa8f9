// SPDX-License-Identifier: Apache-2.0
//
// Tensor: the tensor that the steps of a plan move, and its devices' links. Internal to relayout/.
#ifndef TESSERA_RELAYOUT_TENSOR_H_
#define TESSERA_RELAYOUT_TENSOR_H_

#include "base/dtype.h"
#include "base/shape.h"
#include "relayout/topology.h"

namespace tessera::internal {

// The facts that the steps of one plan share: the tensor, under its own shape or a view of it (see
// FactoredView), and the links between the devices.
struct Tensor {
  Shape shape;
  DType dtype;
  Topology topology;
};

}  // namespace tessera::internal

#endif  // TESSERA_RELAYOUT_TENSOR_H_
