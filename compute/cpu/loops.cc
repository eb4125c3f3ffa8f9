// SPDX-License-Identifier: Apache-2.0
#include "compute/cpu/loops.h"

#include "device/arithmetic.h"

namespace tessera::kernels {

const Loops& loops(InstructionSet set) {
  switch (set) {
#ifndef TESSERA_WITHOUT_AVX512
    case InstructionSet::kAvx512:
      return internal::loops_avx512();
#endif
    case InstructionSet::kAvx2:
      return internal::loops_avx2();
    default:
      return internal::loops_baseline();
  }
}

const Loops& loops() {
  static const Loops& best = loops(best_instruction_set());
  return best;
}

}  // namespace tessera::kernels
