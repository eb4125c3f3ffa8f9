// SPDX-License-Identifier: Apache-2.0
//
// The kernels without vector instructions: what a CPU that has none of the known ones runs, and in
// words of C++ what all the others compute.
#ifndef TESSERA_COLLECTIVES_HOST_KERNELS_PLAIN_H_
#define TESSERA_COLLECTIVES_HOST_KERNELS_PLAIN_H_

#include "collectives/host/kernels_simd.h"

namespace tessera::host {

// As reduce_dense() and copy_rows(), with cached stores always.
void reduce_dense_plain(const DenseReduction& reduction);
void copy_rows_plain(const RowCopy& copy);

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_KERNELS_PLAIN_H_
