// SPDX-License-Identifier: Apache-2.0
//
// ClientOptions: the arguments of Client::connect() and spawn(); MeshOptions: the arguments of
// create_mesh().
#ifndef TESSERA_DTENSOR_CLIENT_OPTIONS_H_
#define TESSERA_DTENSOR_CLIENT_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/public.h"
#include "base/reduce_op.h"
#include "base/status.h"
#include "base/wait_report.h"
#include "device/device.h"
#include "relayout/topology.h"

namespace TESSERA_PUBLIC tessera {

namespace mpi {
class Calls;  // Internal.
}  // namespace mpi

// The transport of bytes between hosts. Clients of one host share memory, and GPUs of several
// clients use NCCL, under each of these.
enum class Backend : uint8_t {
  kAuto,  // UCX
  kHost,  // UCX
  kUcx,   // UCX
  kMpi,   // MPI: tessera::mpi::adopt() (tessera/mpi.h) gives options for it
  kGloo,  // Gloo, in a build that found it; Unimplemented in others
  // UCX. For GPUs only: between clients NCCL also adds, as fast as it can, and not with the bits of
  // kAuto (docs/gpu.md, "Numerics").
  kNccl,
};
// "auto", "host", "ucx", "mpi", "gloo", "nccl".
absl::string_view backend_name(Backend backend);
// The inverse; InvalidArgument lists the names.
StatusOr<Backend> parse_backend(absl::string_view text);

struct ClientOptions {
  std::string coordinator = {};  // "host:port"; empty: from the environment; none there: one client
  std::optional<int> client_id = {};    // unset: from the environment
  std::optional<int> num_clients = {};  // unset: from the environment
  // 0: $TESSERA_LOCAL_DEVICES, else every visible GPU (kCuda) or 1 (kCpu). Devices beyond the GPUs
  // of the host share them.
  int num_local_devices = 0;
  DeviceType device_type = DeviceType::kCpu;
  // Equal on all clients: where they differ, operations between them are InvalidArgument.
  Backend backend = Backend::kAuto;
  // For kMpi: the communicator that tessera::mpi::adopt() has duplicated.
  std::shared_ptr<mpi::Calls> mpi = {};
  // Another process hosts the coordinator at this address: a launcher, or tessera_coordinator. If
  // false client 0 hosts it, and the loss of client 0 ends the job for all. Unset: whether
  // $TESSERA_HOSTED_COORDINATOR is the address.
  std::optional<bool> coordinator_is_hosted = {};
  // The job token; empty: $TESSERA_TOKEN. Without one, clients of a host share a token that the
  // host of the coordinator makes, in a file that only this user can read.
  std::string token = {};
  absl::Duration connect_timeout = absl::Seconds(60);
  // Deadline of every collective. Unset: $TESSERA_COLLECTIVE_TIMEOUT, as in 30s or 10m; else none.
  std::optional<absl::Duration> collective_timeout = {};
  // A client is lost when more than three heartbeats in a row are missed. 1 ms to 1 h, equal on all
  // clients. Unset: $TESSERA_HEARTBEAT_INTERVAL, as in 10m for a debugger that stops a client; else
  // 1 s.
  std::optional<absl::Duration> heartbeat_interval = {};
  // The costs of the links between devices, by which relayouts are planned; equal on all clients.
  // Unset: all links of a host cost the same, because all clients of the host map its memory; the
  // network between hosts is measured at connect, and rounded to a class of networks
  // (docs/relayout.md).
  std::optional<LinkCosts> link_costs = {};
  // The order in which relayouts and groups add the terms of devices of several hosts; equal on all
  // clients.
  ReductionOrder reduction_order = ReductionOrder::kByHost;
  // Receives the reports of long waits instead of stderr.
  // - A call that waits for other clients has no end without a deadline, but it is never silent:
  //   after 10 s, 30 s, 1, 2 and 5 minutes, and every 5 minutes, the client reports which operation
  //   waits, and the last known activity of each client for which it waits (docs/errors.md, "Long
  //   waits"). By default a report is one line on stderr. A function that does nothing silences it.
  // - A thread of the client calls it, one call at a time, from connect() to the end of the client,
  //   which waits for a running call.
  // - It must not block, nor throw; shutdown() in it is FailedPrecondition.
  std::function<void(const WaitReport& report)> on_wait = {};
};

struct MeshOptions {
  // Timeout of the agreement among the clients; the earliest timeout of all counts. Unset: waits
  // until all have made the call, or a client is lost or has left.
  std::optional<absl::Duration> timeout = {};
};

}  // namespace tessera

#endif  // TESSERA_DTENSOR_CLIENT_OPTIONS_H_
