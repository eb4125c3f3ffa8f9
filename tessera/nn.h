// SPDX-License-Identifier: Apache-2.0
//
// To train: named parameters, in the namespace tessera::nn (nn/parameters.h), and the optimizers
// that change them (nn/optimizer.h).
#ifndef TESSERA_TESSERA_NN_H_
#define TESSERA_TESSERA_NN_H_

#include "nn/optimizer.h"
#include "nn/parameters.h"
#include "tessera/ops.h"

#endif  // TESSERA_TESSERA_NN_H_
