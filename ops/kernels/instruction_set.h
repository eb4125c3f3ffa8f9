// SPDX-License-Identifier: Apache-2.0
//
// InstructionSet: which of the builds of a kernel this process runs.
#ifndef TESSERA_OPS_KERNELS_INSTRUCTION_SET_H_
#define TESSERA_OPS_KERNELS_INSTRUCTION_SET_H_

#include <cstdint>

namespace tessera::kernels {

// In ascending order: a CPU that has one has those before it.
enum class InstructionSet : uint8_t { kBaseline, kAvx2, kAvx512 };

// "baseline", "avx2" or "avx512".
const char* instruction_set_name(InstructionSet set);
// The best that this CPU has and this build has code for.
InstructionSet best_instruction_set();

}  // namespace tessera::kernels

#endif  // TESSERA_OPS_KERNELS_INSTRUCTION_SET_H_
