// SPDX-License-Identifier: Apache-2.0
//
// The kernels without vector instructions. They run on a CPU that has no known instruction set, and
// they define in plain C++ the results of all other kernels.
#ifndef TESSERA_DEVICE_CPU_KERNELS_PLAIN_H_
#define TESSERA_DEVICE_CPU_KERNELS_PLAIN_H_

#include "device/cpu/kernel_arguments.h"

namespace tessera::cpu {

// As reduce_dense() and copy_rows(), with cached stores always.
void reduce_dense_plain(const DenseReduction& reduction);
void copy_rows_plain(const RowCopy& copy);

}  // namespace tessera::cpu

#endif  // TESSERA_DEVICE_CPU_KERNELS_PLAIN_H_
