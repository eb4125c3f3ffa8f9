// SPDX-License-Identifier: Apache-2.0
//
// HostResources: the objects that all groups of one client use: the link to the other clients, the
// memory, the streams of its devices, and the threads on which messages wait.
//
// Invariant: after stop() none of its threads runs. A thread that is requested later has ended when
// the call returns.
//
// Thread-safe.
#ifndef TESSERA_COLLECTIVES_HOST_HOST_RESOURCES_H_
#define TESSERA_COLLECTIVES_HOST_HOST_RESOURCES_H_

#include <unistd.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/fork_guard.h"
#include "base/status.h"
#include "base/wait_reports.h"
#include "collectives/group_backend.h"
#include "collectives/host/message_pump.h"
#include "collectives/host/replica_loans.h"
#include "device/cpu/arena.h"
#include "device/cpu/cpu_stream.h"
#include "device/device.h"
#include "device/stream.h"
#include "shm/host_link.h"

namespace tessera::host {

class HostResources {
 public:
  // The group {from, to} of the messages from one device to another.
  using FindMessages =
      std::function<StatusOr<std::shared_ptr<GroupBackend>>(int from_device, int to_device)>;

  // `devices` are the devices of the job by id; `streams` are the streams of this client's devices
  // by ordinal.
  HostResources(shm::HostLink& link, std::shared_ptr<ArenaPool> pool, std::vector<Device> devices,
                std::vector<Stream*> streams, absl::Duration collective_timeout,
                FindMessages find_messages);

  shm::HostLink& link() const { return link_; }
  ArenaPool& pool() const { return *pool_; }
  ReplicaLoans& loans() const { return *loans_; }
  const std::vector<Device>& devices() const { return devices_; }
  Stream& stream(int ordinal) const { return *streams_[ordinal]; }
  absl::Duration collective_timeout() const { return collective_timeout_; }
  StatusOr<std::shared_ptr<GroupBackend>> messages(int from_device, int to_device) const {
    return find_messages_(from_device, to_device);
  }

  // The reports of callers that wait for a message, and the description of an awaited client in
  // them. Must be set before the first call, or never.
  using DescribeClient = std::function<WaitReports::Missing(int client)>;
  void set_wait_reports(WaitReports* reports, DescribeClient describe) {
    wait_reports_ = reports;
    describe_client_ = std::move(describe);
  }
  WaitReports* wait_reports() const { return wait_reports_; }
  const DescribeClient& describe_client() const { return describe_client_; }

  // FailedPrecondition in a forked child of the client's process.
  Status check_process() const;
  // Also FailedPrecondition inside a task of a device of the client, which `call` would wait for.
  // Names the call, the task and the device.
  Status check_may_wait(absl::string_view call) const;

  // The pump in which the messages of a local device wait for the other side, so that its stream
  // does not. ResourceExhausted where the thread cannot be started, as below.
  StatusOr<MessagePump*> message_pump(int ordinal);
  // As message_pump(), for one end of the messages between two devices that move the bytes
  // themselves: the messages also wait for the bytes there.
  StatusOr<Stream*> message_stream(int from_device, int to_device, bool sends);
  // Messages may be ready by an event that rings no bell.
  void look_at_messages_again();
  // Runs the messages that wait, and ends the threads. Requires that the groups are closed.
  void stop();

 private:
  const ForkGuard fork_guard_;
  const int64_t pid_ = getpid();
  shm::HostLink& link_;
  const std::shared_ptr<ArenaPool> pool_;
  const std::shared_ptr<ReplicaLoans> loans_;
  const std::vector<Device> devices_;
  const std::vector<Stream*> streams_;
  const absl::Duration collective_timeout_;
  const FindMessages find_messages_;
  WaitReports* wait_reports_ = nullptr;
  DescribeClient describe_client_;

  std::mutex mutex_;                                           // guards the members below
  std::map<int, std::unique_ptr<MessagePump>> message_pumps_;  // by ordinal
  std::map<std::tuple<int, int, bool>, std::unique_ptr<CpuStream>> message_streams_;
  bool stopped_ = false;
};

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_HOST_RESOURCES_H_
