// SPDX-License-Identifier: Apache-2.0
//
// Client: one process of a job, and the root of all objects of the job in it.
//
//   TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect());    where the launcher says
//   TESSERA_ASSIGN_OR_RETURN(Mesh mesh, create_mesh(client, {{"batch", 4}, {"model", 2}}));
//   ...
//   return client.shutdown();
//
// Every client of a job makes the same calls in the same order. A Client is a cheap handle: copies
// mean the same client.
// - Meshes and tensors hold a handle too. Destroying the last handle without shutdown() looks to
//   the other clients like a loss of this one.
// - A function that runs on a device may hold the last handle: the client then ends on another
//   thread, and the process does not end before the client has ended.
//
// A forked child cannot use the client: calls are FailedPrecondition there, and destroying its
// handles does nothing. Fork before connect(), or exec in the child.
//
// Client() is empty, as a Client that was moved from is: it has no devices and id 0, and calls that
// can fail return FailedPrecondition.
//
// Threads. Any thread may make any call. The program decides the order where two clients must agree
// on it (docs/order.md has wrong examples).
// - Operations on all local devices (relayout, to_host, local_map, mesh.barrier): each gets its
//   place in the client's order when it is called. Operations of several threads reach every device
//   in the same order, and each gets its own values.
// - Operations of several clients: all of these clients must call them in one order. Two threads
//   that call them at the same time have no such order. Threads whose meshes have no device in
//   common need an order only for create_mesh.
// - Collectives of a Group: each is an operation of one device. A device needs one order of its
//   Group's calls and of the operations on all local devices, equal to that of the other members.
//
// TF DTensor: initialize_accelerator_system, shutdown_accelerator_system. torch:
// init_process_group, destroy_process_group.
#ifndef TESSERA_DTENSOR_CLIENT_H_
#define TESSERA_DTENSOR_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/public.h"
#include "base/status.h"
#include "collectives/group.h"
#include "device/device.h"
#include "device/device_span.h"
#include "dtensor/client_options.h"
#include "mesh/mesh.h"
#include "relayout/plan.h"
#include "relayout/topology.h"

namespace TESSERA_PUBLIC tessera {

class Runtime;  // Internal.
namespace internal {
struct ClientHooks;
}  // namespace internal

class Client;
namespace internal {
StatusOr<Client> connect(const ClientOptions& options, const ClientHooks& hooks);
const std::shared_ptr<Runtime>& runtime_of(const Client& client);
}  // namespace internal

class Client {
 public:
  Client() = default;
  bool valid() const { return runtime_ != nullptr; }

  // Joins the job, and returns when all its clients have joined. Errors as in docs/errors.md:
  // - InvalidArgument: options out of range and a bad environment (both immediately), two clients
  //   with one id;
  // - Unauthenticated: a wrong token;
  // - DeadlineExceeded: a client does not join; names that client;
  // - Unimplemented: a device type or backend that does not exist yet.
  static StatusOr<Client> connect(const ClientOptions& options = {});

  int client_id() const;
  int num_clients() const;
  // Index among the clients of this host, by id: from 0 to their number - 1. torchrun: LOCAL_RANK.
  int local_rank() const;
  // All devices of the job, by global id.
  absl::Span<const Device> devices() const;
  absl::Span<const Device> local_devices() const;
  // The topology by which relayouts of this job are planned: plan_relayout(from, to, shape, dtype,
  // {.topology = client.topology()}) is the plan that relayout() runs, with the reduction_order of
  // the options where they have one.
  const Topology& topology() const;

  // Groups. A Group is one member, which is one local device; a client with several local devices
  // has a Group for each. Local: no communication.
  //
  // The group of all devices of the job, by id, as the only local device. InvalidArgument where the
  // client has several local devices: see groups().
  StatusOr<Group> group() const;
  // The group of these devices, as the member `local_device` (an ordinal); without one, as the only
  // local device in the list. InvalidArgument for a bad list, and, without `local_device`, for a
  // list with no local device or several.
  StatusOr<Group> group(std::vector<int> device_ids,
                        std::optional<int> local_device = std::nullopt) const;
  // The devices that differ from this local device only along `axes` of `mesh`.
  StatusOr<Group> group(const Mesh& mesh, absl::Span<const std::string> axes,
                        int local_device) const;
  // The group of all devices of the job, once as each local device: groups()[i] is the member of
  // local device i. Start an operation on all of them before you wait for one:
  //   for (const Group& g : groups) works.push_back(g.all_reduce(x[i++], ReduceOp::kSum));
  //   Status s = await_all(works);
  StatusOr<std::vector<Group>> groups() const;
  // The group of these devices, once as each local device in the list, by ordinal. InvalidArgument
  // for a bad list, and for a list with no local device.
  StatusOr<std::vector<Group>> groups(std::vector<int> device_ids) const;

  // Memory of a local device that collectives reach directly (device_span.h). InvalidArgument for a
  // local device that does not exist, or a count that is negative or beyond 2^63 - 1 bytes;
  // ResourceExhausted where there is no memory.
  template <HasDType T>
  StatusOr<DeviceSpan<T>> allocate(int local_device, int64_t count) const {
    TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<std::byte> memory,
                             raw_allocate(local_device, count, dtype_of<T>()));
    T* const first = reinterpret_cast<T*>(memory.get());
    return DeviceSpan<T>(absl::MakeSpan(first, static_cast<size_t>(count)), std::move(memory));
  }

  // Blocks until every pending op of this client's devices has finished; returns the first error
  // since the last call. Local: it does not wait for work that only other clients have, but it does
  // wait until the others have read this client's tensors as far as their operations need. Memory
  // without an owner is free then. TF: tf.test.experimental.sync_devices.
  Status sync_devices();

  // Leaves the job in order: refuses later calls, finishes pending work, and waits until the other
  // live clients do the same, both up to the timeout.
  // - At the timeout pending work is Cancelled, on all clients that take part in it.
  // - DeadlineExceeded names the devices whose local functions still run. These functions continue,
  //   and the client ends after them.
  // - Clients for which this one has not waited learn that it has left the job.
  // - The second call returns immediately.
  Status shutdown(absl::Duration timeout = absl::Seconds(30));

 private:
  friend StatusOr<Client> internal::connect(const ClientOptions& options,
                                            const internal::ClientHooks& hooks);
  friend const std::shared_ptr<Runtime>& internal::runtime_of(const Client& client);
  friend StatusOr<Mesh> create_mesh(const Client& client, std::vector<MeshAxis> axes,
                                    std::vector<int> device_ids, const MeshOptions& options);
  // The group as the member `local_device`, or as each local device in the list, by ordinal.
  StatusOr<std::vector<Group>> members(const std::vector<int>& device_ids,
                                       std::optional<int> local_device) const;
  Status check_local_device(int local_device) const;
  StatusOr<std::shared_ptr<std::byte>> raw_allocate(int local_device, int64_t count,
                                                    DType dtype) const;
  explicit Client(std::shared_ptr<Runtime> runtime) : runtime_(std::move(runtime)) {}
  Status check_valid(absl::string_view call) const;

  std::shared_ptr<Runtime> runtime_;  // null: empty
};

// A live mesh over all devices of the job, row-major. Collective over the clients that own its
// devices, with one Status for all:
// - InvalidArgument where their arguments differ, or where clients wait for each other over
//   different devices; names two clients and both meshes with their devices;
// - Unavailable names a client that is lost or has left;
// - DeadlineExceeded names the clients that did not make the call.
// TF DTensor: create_mesh, create_distributed_mesh.
StatusOr<Mesh> create_mesh(const Client& client, std::vector<MeshAxis> axes,
                           const MeshOptions& options = {});
// A live mesh over some devices, in this order. Clients that own none of them do not wait.
StatusOr<Mesh> create_mesh(const Client& client, std::vector<MeshAxis> axes,
                           std::vector<int> device_ids, const MeshOptions& options = {});
// As above, for a list in braces: {} means no devices (InvalidArgument) and not MeshOptions.
inline StatusOr<Mesh> create_mesh(const Client& client, std::vector<MeshAxis> axes,
                                  std::initializer_list<int> device_ids,
                                  const MeshOptions& options = {}) {
  return create_mesh(client, std::move(axes), std::vector<int>(device_ids), options);
}

}  // namespace tessera

#endif  // TESSERA_DTENSOR_CLIENT_H_
