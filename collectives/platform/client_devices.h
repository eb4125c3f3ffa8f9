// SPDX-License-Identifier: Apache-2.0
//
// ClientDevices: the devices of one client, the memory of its host, and the groups that its devices
// form with devices of other clients. The layers above know no back end of collectives.
//
//   ClientDevices::start(...)     connects to the clients of the host, and starts the devices
//   device(ordinal), group(ids), allocate_on_host(bytes)
//
//   running ---- drain() ----> idle ---- show_shutdown() ----> idle
//      |   at the deadline      |
//      +------------------------+
//      | cancel()               ends all waits for other clients
//      | leave()                the end of this client is no loss to the others
//      | stop(deadline)         the devices start no task any more, and finish the running ones
//      | end_threads()          no thread is left
//      v
//   ended: groups and memory that users hold stay valid, and their operations fail
//
// A client that ends in order calls all of them; it calls cancel() just before stop() if drain()
// returned true. A client that ends without shutdown() calls cancel(), stop() and end_threads().
//
// Threads. Any thread may call the functions above "The end". The functions below are called by one
// thread at a time, never from a device task.
#ifndef TESSERA_COLLECTIVES_PLATFORM_CLIENT_DEVICES_H_
#define TESSERA_COLLECTIVES_PLATFORM_CLIENT_DEVICES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/public.h"
#include "base/status.h"
#include "base/wait_reports.h"
#include "collectives/group_backend.h"
#include "collectives/platform/platform.h"
#include "device/buffer.h"
#include "device/device.h"
#include "device/local_device.h"
#include "transport/link_measurement.h"

namespace TESSERA_PUBLIC tessera {
namespace mpi {
class Calls;
}  // namespace mpi
}  // namespace tessera

namespace tessera {

class ArenaPool;
class Coordinator;
class DeviceWaits;
namespace span {
class Network;
}  // namespace span
namespace transport {
class Engine;
}  // namespace transport
namespace host {
class HostBackend;
}  // namespace host
namespace shm {
class HostLink;
}  // namespace shm

struct ClientDevicesOptions {
  absl::Duration collective_timeout = absl::InfiniteDuration();
  // The engine between hosts is MPI where this is set, else Gloo or UCX.
  std::shared_ptr<mpi::Calls> mpi = {};
  bool uses_gloo = false;
  absl::Duration heartbeat_interval = absl::Seconds(1);
  // Tells the messages of the job from others; equal on all clients, and derived from the token.
  uint64_t job_word = 0;
  // Wraps the engine, in tests.
  std::function<StatusOr<std::unique_ptr<transport::Engine>>(std::unique_ptr<transport::Engine>)>
      wrap_engine = {};
};

class ClientDevices {
 public:
  // The bytes that groups may take while caches hold some of them.
  static const uint64_t kGroupBytes;

  // Blocks until the clients of the host are connected; errors as of HostLink::create() and
  // Platform::start_devices(). `devices` are the devices of the job by id. `coordinator` must
  // outlive the result. `platform` has joined the job.
  static StatusOr<std::unique_ptr<ClientDevices>> start(std::unique_ptr<Platform> platform,
                                                        Coordinator& coordinator,
                                                        std::vector<Device> devices,
                                                        const ClientDevicesOptions& options,
                                                        absl::Time deadline);
  // Requires end_threads(), unless start() failed.
  ~ClientDevices();

  // The cost of the network between hosts: the class of the result of transport::measure_network(),
  // or its error. All clients of a job on several hosts call it once.
  StatusOr<transport::NetworkCost> measure_network(Coordinator& coordinator, absl::Time deadline);

  // By ordinal.
  absl::Span<const Device> local() const { return local_; }
  LocalDevice& device(int ordinal) const { return *by_ordinal_[ordinal]; }
  // Equal for all devices of a client, which are of one kind.
  bool uses_host_memory() const { return by_ordinal_[0]->uses_host_memory(); }
  const std::shared_ptr<ArenaPool>& host_memory() const { return pool_; }
  // ResourceExhausted where there is no memory.
  StatusOr<std::shared_ptr<Buffer>> allocate_on_host(int64_t size_bytes);

  // FailedPrecondition in a forked child of the client's process.
  Status check_process() const;
  // Also FailedPrecondition inside a device task, which `call` would wait for.
  Status check_may_wait(absl::string_view call) const;

  // As HostBackend::group(), num_group_bytes() and forget_unused_groups().
  StatusOr<std::shared_ptr<GroupBackend>> group(absl::Span<const int> device_ids);
  uint64_t num_group_bytes() const;
  void forget_unused_groups();

  // Blocks until the devices have done their queued work, and the other clients have read the
  // memory that it lends to them. Returns the first error of a task.
  Status sync();
  // Ends operations with this client, here or elsewhere, with this Status.
  void report_lost(int client, const Status& reason);

  // Adds the waits of devices to the reports, and tells the other clients of the host in which call
  // this client waits, until the reports have stopped. Must be called before end_threads().
  void report_waits(WaitReports& reports);
  // "client 1 (host-a, pid 7), in user code for 12 s since relayout #6; ..." for reports of other
  // waits. `silent`: the clients among them that miss heartbeats.
  WaitReports::Missing describe_clients(absl::Span<const int> clients,
                                        absl::Span<const int> silent) const;

  // ---- The end.

  // Blocks until all streams are idle; false at the deadline. No further work may be given to them.
  bool drain(absl::Time deadline);
  // Makes the activity of this client's devices "in shutdown" for clients that wait for it.
  // Requires that drain() returned true.
  void show_shutdown();
  // Ends all waits for other clients, here and there, as Cancelled.
  void cancel();
  // Announces that the end of this client's process is no loss from now on. Does not block.
  void leave();
  // Blocks until all streams have ended. Returns "; device 3 is ..." of each device whose function
  // still runs at the deadline; empty for none. Requires cancel().
  std::string stop(absl::Time deadline);
  // Blocks until the threads have ended too, and closes the sockets.
  void end_threads();

  // For tests.
  const host::HostBackend& backend() const { return *backend_; }

 private:
  // Connects to the clients of the other hosts, where there are any.
  Status open_network(Coordinator& coordinator, const ClientDevicesOptions& options,
                      absl::Time deadline);
  ClientDevices(std::unique_ptr<Platform> platform, std::vector<Device> local);

  const std::vector<Device> local_;
  std::shared_ptr<ArenaPool> pool_;
  std::unique_ptr<shm::HostLink> link_;
  std::vector<std::unique_ptr<LocalDevice>> by_ordinal_;
  std::unique_ptr<Platform> platform_;      // destroyed before the devices
  std::shared_ptr<span::Network> network_;  // null: all clients are on one host
  std::unique_ptr<host::HostBackend> backend_;
  std::unique_ptr<DeviceWaits> waits_;
};

}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_PLATFORM_CLIENT_DEVICES_H_
