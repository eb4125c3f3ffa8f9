// SPDX-License-Identifier: Apache-2.0
//
// Checks ClientOptions for errors that do not depend on state, before anything is started. Internal
// to dtensor/.
#ifndef TESSERA_DTENSOR_CHECK_OPTIONS_H_
#define TESSERA_DTENSOR_CHECK_OPTIONS_H_

#include "base/status.h"
#include "dtensor/client_options.h"
#include "job/environment/environment.h"

namespace tessera {

// InvalidArgument names the option, its value and the range; Unimplemented a backend that does not
// exist yet.
Status check_options(const ClientOptions& options);
// InvalidArgument where the coordinator of a job of several clients is not at HOST:PORT.
Status check_address(const JobEnvironment& job);

}  // namespace tessera

#endif  // TESSERA_DTENSOR_CHECK_OPTIONS_H_
