// SPDX-License-Identifier: Apache-2.0
//
// RelayoutProgram: a RelayoutPlan made ready to run by this client's devices. Internal to dtensor/.
//
// The rows of the local devices are taken from the plan once, with the groups that they meet in.
#ifndef TESSERA_DTENSOR_PROGRAM_H_
#define TESSERA_DTENSOR_PROGRAM_H_

#include <memory>

#include "base/status.h"
#include "dtensor/replicas.h"
#include "dtensor/step_program.h"
#include "relayout/plan.h"

namespace tessera {

struct RelayoutProgram : StepProgram {
  RelayoutPlan plan;

  static StatusOr<std::shared_ptr<const RelayoutProgram>> create(const ProgramClient& client,
                                                                 RelayoutPlan plan,
                                                                 Replicas replicas);
};

}  // namespace tessera

#endif  // TESSERA_DTENSOR_PROGRAM_H_
