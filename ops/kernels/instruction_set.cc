// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/instruction_set.h"

namespace tessera::kernels {
namespace {

InstructionSet find_set() {
  __builtin_cpu_init();
#ifndef TESSERA_WITHOUT_AVX512
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw")) {
    return InstructionSet::kAvx512;
  }
#endif
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return InstructionSet::kAvx2;
  return InstructionSet::kBaseline;
}

}  // namespace

const char* instruction_set_name(InstructionSet set) {
  static constexpr const char* kNames[] = {"baseline", "avx2", "avx512"};
  return kNames[static_cast<int>(set)];
}

InstructionSet best_instruction_set() {
  static const InstructionSet set = find_set();
  return set;
}

}  // namespace tessera::kernels
