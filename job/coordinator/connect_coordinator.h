// SPDX-License-Identifier: Apache-2.0
//
// connect_coordinator: makes this process a client of a job.
//
// Thread-safe: clients of several jobs, or several clients of one, may be threads of one process.
#ifndef TESSERA_JOB_COORDINATOR_CONNECT_COORDINATOR_H_
#define TESSERA_JOB_COORDINATOR_CONNECT_COORDINATOR_H_

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/status.h"
#include "base/wait_reports.h"
#include "job/coordinator/coordinator.h"

namespace tessera {

// Which process runs the service.
enum class ServiceHost {
  kClient0,    // client 0 starts it when it connects, and it ends with client 0
  kElsewhere,  // a launcher or tessera_coordinator; clients only connect to it
};

struct CoordinatorOptions {
  std::string address;  // "host:port"; unused where num_clients is 1
  // "host:port" of a relay on this host, which forwards all calls to the service; empty: none.
  std::string relay = {};
  ServiceHost service_host = ServiceHost::kClient0;
  std::string token;  // job token; compared by the service in every call
  int num_clients = 1;
  MemberInfo self;
  absl::Duration connect_timeout = absl::Seconds(60);
  // Where connecting is the last of several steps with one deadline: of steady_now(). The earlier
  // of both counts.
  absl::Time deadline = absl::InfiniteFuture();
  // Identity of the job: a service of another job refuses the client. Empty: not known.
  std::string job = {};
  // The job uses the shortest interval that a client asks for, and at most the interval of the
  // service.
  absl::Duration heartbeat_interval = absl::Seconds(1);
  // Reports the wait for the service and for the other clients, as a part of "connect" that has
  // lasted since `begin`; null: not reported.
  WaitReports* reports = nullptr;
  absl::Time begin = absl::InfinitePast();
};

// Joins the job and waits for all its clients, no longer than connect_timeout and half a second for
// the service's answer. One client: an in-process service, no network.
//   DeadlineExceeded  names every client that did not connect
//   InvalidArgument   two clients with one id (both named, with host and pid), different
//                     num_clients (both named)
//   InvalidArgument   a malformed address, a token beyond kMostTokenBytes, a client of another job
//   Unauthenticated   a wrong token
//   Unavailable       the service is lost while clients connect
StatusOr<std::unique_ptr<Coordinator>> connect_coordinator(const CoordinatorOptions& options);

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_CONNECT_COORDINATOR_H_
