// SPDX-License-Identifier: Apache-2.0
//
// JobConnection: the place of one client in its job: the coordinator, the devices of all clients
// and its own, and the reports of its long waits. Internal to dtensor/.
//
//   connect() ----> running ---- leave(), or stop() alone ----> ended
//
// Invariants:
//   1. devices(), plan_options() and arithmetic() never change, and all clients have the same;
//   2. after leave() or stop(), what users still hold stays valid, and fails.
//
// Threads. Any thread may call the functions above "The end". The owner calls leave() or stop(),
// once. An object is moved only before other threads know it.
#ifndef TESSERA_DTENSOR_JOB_CONNECTION_H_
#define TESSERA_DTENSOR_JOB_CONNECTION_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "base/wait_reports.h"
#include "collectives/platform/client_devices.h"
#include "collectives/platform/platform.h"
#include "device/arithmetic.h"
#include "device/device.h"
#include "dtensor/client_hooks.h"
#include "dtensor/client_options.h"
#include "job/coordinator/coordinator.h"
#include "relayout/plan.h"

namespace tessera {

struct JobTimes;

class JobConnection {
 public:
  // Errors as Client::connect().
  static StatusOr<JobConnection> connect(const ClientOptions& options,
                                         const internal::ClientHooks& hooks);

  int client_id() const { return coordinator_->client_id(); }
  int num_clients() const { return coordinator_->num_clients(); }
  int local_rank() const;
  // By id.
  absl::Span<const Device> devices() const { return devices_; }
  // The devices of this client.
  ClientDevices& client_devices() const { return *client_devices_; }
  // How relayouts are planned.
  const PlanOptions& plan_options() const { return plan_options_; }
  // The arithmetic of the CPUs of all clients.
  const Arithmetic& arithmetic() const { return arithmetic_; }
  // For layers above, whose calls may wait too.
  WaitReports& reports() const { return *reports_; }

  // Waits until all `participants` have made this call. Errors as of Coordinator::check_in().
  Status check_in(absl::string_view name, const std::string& value,
                  absl::Span<const int> participants, absl::Time deadline) const;

  // Messages of layers above (client_messages.h).
  StatusOr<std::string> propose(absl::string_view series, uint32_t number,
                                absl::string_view value) const {
    return coordinator_->propose(series, number, value, absl::InfiniteFuture());
  }
  StatusOr<std::string> get_proposal(absl::string_view series, uint32_t number, int setter,
                                     absl::Time deadline) const {
    return coordinator_->get_proposal(series, number, setter, deadline);
  }
  // The loss of the client that was lost first; OK where none was.
  Status first_loss() const;
  // "client 2 (host-b, pid 4711)".
  std::string describe_client(int client) const {
    return coordinator_->members()[client].to_string();
  }

  // ---- The end. Requires that no operation begins any more.

  // Waits until the devices have done their work, and leaves the job. DeadlineExceeded where work
  // was cancelled after `timeout`. `keep`: as for stop().
  Status leave(absl::Duration timeout, std::shared_ptr<const void> keep);
  // Ends the threads and closes the sockets. Functions that still run on a device at the deadline
  // continue; a thread then keeps `keep`, which holds this object, until they have ended. Returns
  // which devices these are, empty for none.
  std::string stop(absl::Time deadline, std::shared_ptr<const void> keep);

 private:
  JobConnection(const ClientOptions& options, const internal::ClientHooks& hooks)
      : options_(options), hooks_(hooks) {}
  // Starts the reports of long waits.
  Status start_reports(int client_id);
  Status start_devices(std::unique_ptr<Platform> platform, const JobTimes& times, uint64_t job_word,
                       absl::Time deadline);
  // The clients for which a call of this client at the coordinator waits. `value`: the value of a
  // check-in, else empty. Called by the thread of the reports.
  WaitReports::Missing awaited(AwaitedCall::Kind kind, absl::string_view value) const;

  struct FirstLoss {
    mutable std::mutex mutex;
    Status status;  // guarded by mutex
  };

  ClientOptions options_;
  internal::ClientHooks hooks_;
  std::vector<Device> devices_;
  PlanOptions plan_options_;
  Arithmetic arithmetic_;
  std::shared_ptr<FirstLoss> first_loss_ = std::make_shared<FirstLoss>();
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<ClientDevices> client_devices_;
  std::unique_ptr<WaitReports> reports_;  // destroyed first: uses the members above
};

}  // namespace tessera

#endif  // TESSERA_DTENSOR_JOB_CONNECTION_H_
