// SPDX-License-Identifier: Apache-2.0
//
// The inner loops of the kernels, compiled once for each instruction set. The best set of the CPU
// is chosen at run time: plain code for any x86-64, SSE4, AVX2, AVX-512. All sets give the same
// bits.
//
// kernels.h is the interface of the kernels; this header has their parts that see bytes and no
// boxes.
#ifndef TESSERA_DEVICE_CPU_KERNELS_SIMD_H_
#define TESSERA_DEVICE_CPU_KERNELS_SIMD_H_

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "device/cpu/kernel_arguments.h"

namespace tessera::cpu {

// Both leave streaming stores unordered with later writes: call fence_stores() before others are
// told.
void reduce_dense(const DenseReduction& reduction);
void copy_rows(const RowCopy& copy);
void fence_stores();

// The instruction sets that this binary has code for and this CPU can run, best first.
std::vector<int64_t> instruction_sets();
absl::string_view instruction_set_name(int64_t instruction_set);
// For tests: uses this set of instruction_sets() from now on, or the best again with 0. Must not be
// called while another thread is in a kernel.
void use_instruction_set(int64_t instruction_set);

}  // namespace tessera::cpu

#endif  // TESSERA_DEVICE_CPU_KERNELS_SIMD_H_
