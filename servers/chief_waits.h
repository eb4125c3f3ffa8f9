// SPDX-License-Identifier: Apache-2.0
//
// ChiefWaits: reports that a chief is waiting for its tasks. A ClusterCoordinator shares them with
// its RemoteValues, which may outlive it.
//
//   const ReportedWait wait = waits->in("ClusterCoordinator::join");
//
// Thread-safe. The coordinator calls reports.stop() at its end; `missing` is not called afterwards.
#ifndef TESSERA_SERVERS_CHIEF_WAITS_H_
#define TESSERA_SERVERS_CHIEF_WAITS_H_

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/wait_reports.h"

namespace tessera::distribute::internal {

struct ChiefWaits {
  WaitReports reports;
  const std::function<std::optional<WaitReports::Missing>()>
      missing;  // the tasks that every call waits for

  ReportedWait in(std::string call) { return ReportedWait(&reports, std::move(call), missing); }
};

}  // namespace tessera::distribute::internal

#endif  // TESSERA_SERVERS_CHIEF_WAITS_H_
