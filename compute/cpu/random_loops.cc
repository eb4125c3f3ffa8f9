// SPDX-License-Identifier: Apache-2.0
#include "compute/cpu/random_loops.h"

#include "device/arithmetic.h"

namespace tessera::kernels {

const RandomLoops& random_loops(InstructionSet set) {
  switch (set) {
#ifndef TESSERA_WITHOUT_AVX512
    case InstructionSet::kAvx512:
      return internal::random_loops_avx512();
#endif
    case InstructionSet::kAvx2:
      return internal::random_loops_avx2();
    default:
      return internal::random_loops_baseline();
  }
}

const RandomLoops& random_loops() {
  static const RandomLoops& best = random_loops(best_instruction_set());
  return best;
}

}  // namespace tessera::kernels
