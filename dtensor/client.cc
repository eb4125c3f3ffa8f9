// SPDX-License-Identifier: Apache-2.0
#include "dtensor/client.h"

#include <cstdint>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collectives/make_group.h"
#include "device/buffer.h"
#include "dtensor/background_work.h"
#include "dtensor/client_hooks.h"
#include "dtensor/client_messages.h"
#include "dtensor/client_waits.h"
#include "dtensor/runtime.h"

namespace tessera {
namespace {

std::vector<int> all_device_ids(const Client& client) {
  std::vector<int> ids(client.devices().size());
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

}  // namespace

StatusOr<Client> Client::connect(const ClientOptions& options) {
  return internal::connect(options, {});
}

namespace internal {

StatusOr<Client> connect(const ClientOptions& options, const ClientHooks& hooks) {
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Runtime> runtime, Runtime::connect(options, hooks));
  return Client(std::move(runtime));
}

const std::shared_ptr<Runtime>& runtime_of(const Client& client) { return client.runtime_; }

std::shared_ptr<MeshRuntime> mesh_runtime_of(const Client& client) { return runtime_of(client); }

WaitReports* wait_reports_of(const Client& client) { return &runtime_of(client)->job().reports(); }

BackgroundWork& background_work_of(const Client& client,
                                   absl::FunctionRef<std::unique_ptr<BackgroundWork>()> make) {
  return runtime_of(client)->background_work(make);
}

}  // namespace internal

Status Client::check_valid(absl::string_view call) const {
  return valid() ? absl::OkStatus() : internal::empty_client_error(call);
}

int Client::client_id() const { return runtime_ == nullptr ? 0 : runtime_->job().client_id(); }

int Client::num_clients() const { return runtime_ == nullptr ? 0 : runtime_->job().num_clients(); }

int Client::local_rank() const { return runtime_ == nullptr ? 0 : runtime_->job().local_rank(); }

absl::Span<const Device> Client::devices() const {
  return runtime_ == nullptr ? absl::Span<const Device>() : runtime_->job().devices();
}

absl::Span<const Device> Client::local_devices() const {
  return runtime_ == nullptr ? absl::Span<const Device>() : runtime_->devices().local();
}

const Topology& Client::topology() const {
  static const Topology* const kNone = new Topology();
  return runtime_ == nullptr ? *kNone : runtime_->job().plan_options().topology;
}

StatusOr<std::vector<Group>> Client::members(const std::vector<int>& device_ids,
                                             std::optional<int> local_device) const {
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<GroupBackend> backend,
                           runtime_->programs().group(device_ids));
  std::map<int, int> positions;  // in the group, of this client's devices by ordinal
  for (size_t i = 0; i < device_ids.size(); ++i) {
    const Device& device = runtime_->job().devices()[device_ids[i]];
    if (device.client_id != client_id()) continue;
    if (!local_device.has_value() || device.ordinal == *local_device) {
      positions[device.ordinal] = static_cast<int>(i);
    }
  }
  // The group's calls run on the runtime's streams: the runtime must outlive the group.
  struct Held {
    std::shared_ptr<Runtime> runtime;
    std::shared_ptr<GroupBackend> backend;
  };
  auto held = std::make_shared<Held>(Held{runtime_, std::move(backend)});
  const std::shared_ptr<GroupBackend> shared(held, held->backend.get());
  std::vector<Group> members;
  for (const auto& [ordinal, position] : positions) {
    members.push_back(
        internal::make_group(shared, position, runtime_->job().plan_options().reduction_order));
  }
  return members;
}

StatusOr<Group> Client::group() const {
  TESSERA_RETURN_IF_ERROR(check_valid("Client::group"));
  if (local_devices().size() == 1) return group(all_device_ids(*this));
  return absl::InvalidArgumentError(absl::StrCat(
      "client ", client_id(), " has ", local_devices().size(),
      " local devices, and a Group is one member; call groups() for the Group of each"));
}

StatusOr<Group> Client::group(std::vector<int> device_ids, std::optional<int> local_device) const {
  TESSERA_RETURN_IF_ERROR(check_valid("Client::group"));
  TESSERA_ASSIGN_OR_RETURN(std::vector<Group> found, members(device_ids, local_device));
  if (found.size() == 1) return std::move(found[0]);
  return absl::InvalidArgumentError(absl::StrCat(
      "group of devices ", absl::StrJoin(device_ids, ", "), " has ", found.size(),
      local_device.has_value() ? absl::StrCat(" devices with local ordinal ", *local_device)
                               : std::string(" local devices"),
      " of client ", client_id(), "; name one local device that belongs to it"));
}

StatusOr<std::vector<Group>> Client::groups() const { return groups(all_device_ids(*this)); }

StatusOr<std::vector<Group>> Client::groups(std::vector<int> device_ids) const {
  TESSERA_RETURN_IF_ERROR(check_valid("Client::groups"));
  TESSERA_ASSIGN_OR_RETURN(std::vector<Group> found, members(device_ids, std::nullopt));
  if (!found.empty()) return found;
  return absl::InvalidArgumentError(absl::StrCat(
      "group of devices ", absl::StrJoin(device_ids, ", "), " has no local device of client ",
      client_id(), "; only clients with a device in the list make the group"));
}

Status Client::check_local_device(int local_device) const {
  const absl::Span<const Device> local = local_devices();
  if (local_device >= 0 && local_device < static_cast<int>(local.size())) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("local device ", local_device,
                                                 " does not exist; client ", client_id(),
                                                 " has 0 to ", local.size() - 1));
}

StatusOr<Group> Client::group(const Mesh& mesh, absl::Span<const std::string> axes,
                              int local_device) const {
  TESSERA_RETURN_IF_ERROR(check_valid("Client::group"));
  if (!mesh.valid()) return internal::empty_handle("Client::group()", "Mesh");
  TESSERA_RETURN_IF_ERROR(check_local_device(local_device));
  const int id = local_devices()[local_device].id;
  const std::optional<int64_t> position = mesh.position_of_device(id);
  if (!position.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("device ", id, " does not belong to mesh ",
                                                   mesh.to_string(),
                                                   "; name a local device that does"));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> positions, mesh.group(*position, axes));
  std::vector<int> device_ids;
  for (const int64_t p : positions) device_ids.push_back(mesh.device_ids()[p]);
  return group(std::move(device_ids), local_device);
}

StatusOr<std::shared_ptr<std::byte>> Client::raw_allocate(int local_device, int64_t count,
                                                          DType dtype) const {
  TESSERA_RETURN_IF_ERROR(check_valid("Client::allocate"));
  TESSERA_RETURN_IF_ERROR(check_local_device(local_device));
  if (count < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("allocate of ", count, " elements; give 0 or more"));
  }
  const int64_t shape[] = {count};
  TESSERA_RETURN_IF_ERROR(with_context(validate_shape(shape, dtype), "allocate"));
  TESSERA_RETURN_IF_ERROR(runtime_->turns().check_open());
  TESSERA_ASSIGN_OR_RETURN(
      const std::shared_ptr<Buffer> buffer,
      Buffer::allocate(runtime_->device(local_device).memory(), num_bytes(shape, dtype)));
  return std::shared_ptr<std::byte>(buffer, buffer->mutable_data());
}

Status Client::sync_devices() {
  TESSERA_RETURN_IF_ERROR(check_valid("Client::sync_devices"));
  return runtime_->sync_devices();
}

Status Client::shutdown(absl::Duration timeout) {
  TESSERA_RETURN_IF_ERROR(check_valid("Client::shutdown"));
  return runtime_->shutdown(timeout);
}

StatusOr<Mesh> create_mesh(const Client& client, std::vector<MeshAxis> axes,
                           const MeshOptions& options) {
  return create_mesh(client, std::move(axes), all_device_ids(client), options);
}

StatusOr<Mesh> create_mesh(const Client& client, std::vector<MeshAxis> axes,
                           std::vector<int> device_ids, const MeshOptions& options) {
  TESSERA_RETURN_IF_ERROR(client.check_valid("create_mesh"));
  return client.runtime_->make_mesh(std::move(axes), std::move(device_ids), options);
}

}  // namespace tessera
