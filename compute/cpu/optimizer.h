// SPDX-License-Identifier: Apache-2.0
//
// optimizer_step(): one step of an optimizer in one pass over its arrays.
//
// Pure function of memory; several threads at once.
#ifndef TESSERA_COMPUTE_CPU_OPTIMIZER_H_
#define TESSERA_COMPUTE_CPU_OPTIMIZER_H_

#include <cstdint>

#include "base/dtype.h"
#include "compute/engine.h"

namespace tessera::kernels {

// As Engine::optimizer_step(). f16 and bf16 are computed in f32, and the value is rounded once. The
// same bits on every instruction set.
void optimizer_step(const OptimizerStep& step, DType dtype, const StepArrays& arrays,
                    int64_t num_elements);

}  // namespace tessera::kernels

#endif  // TESSERA_COMPUTE_CPU_OPTIMIZER_H_
