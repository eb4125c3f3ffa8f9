// SPDX-License-Identifier: Apache-2.0
//
// Access to the reports of long waits of a client, for waiting calls of the layers above. Internal.
#ifndef TESSERA_DTENSOR_CLIENT_WAITS_H_
#define TESSERA_DTENSOR_CLIENT_WAITS_H_

#include "base/wait_reports.h"
#include "dtensor/client.h"

namespace tessera::internal {

// Valid while the client or a copy of it exists.
WaitReports* wait_reports_of(const Client& client);

}  // namespace tessera::internal

#endif  // TESSERA_DTENSOR_CLIENT_WAITS_H_
