// SPDX-License-Identifier: Apache-2.0
//
// Shards as Eigen tensors: with this header ShardView::eigen() and HostTensor::eigen() can be
// called. tessera/tessera.h does not include it: Eigen's tensor header takes as long to compile as
// most of the others together.
#ifndef TESSERA_TESSERA_EIGEN_H_
#define TESSERA_TESSERA_EIGEN_H_

#include "dtensor/eigen.h"

#endif  // TESSERA_TESSERA_EIGEN_H_
