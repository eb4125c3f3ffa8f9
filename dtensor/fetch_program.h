// SPDX-License-Identifier: Apache-2.0
//
// make_fetch_program(): a Fetch made ready to run by this client's devices, in one step. Internal
// to dtensor/.
#ifndef TESSERA_DTENSOR_FETCH_PROGRAM_H_
#define TESSERA_DTENSOR_FETCH_PROGRAM_H_

#include <memory>

#include "base/status.h"
#include "dtensor/step_program.h"
#include "relayout/fetch.h"

namespace tessera {

// Devices that copy from each other are a group. A device that copies nothing has no new box: it
// keeps its buffer, and others may read it.
StatusOr<std::shared_ptr<const StepProgram>> make_fetch_program(const ProgramClient& client,
                                                                const Fetch& fetch);

}  // namespace tessera

#endif  // TESSERA_DTENSOR_FETCH_PROGRAM_H_
