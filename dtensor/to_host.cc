// SPDX-License-Identifier: Apache-2.0
//
// DTensor::to_host(), item() and gather_to(): the whole tensor in the memory of every client, or of
// one client, by a relayout.
#include "dtensor/to_host.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "dtensor/tensor_access.h"
#include "dtensor/tensor_rep.h"
#include "mesh/mesh_runtime.h"

namespace tessera {
namespace {

// The tensor's value, whole on each of these devices.
StatusOr<DTensor> whole_on(const DTensor& tensor, std::vector<int> device_ids) {
  const internal::TensorRep& rep = internal::TensorAccess::rep(tensor);
  const auto size = static_cast<int64_t>(device_ids.size());
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh,
                           Mesh::create({{"client", size}}, std::move(device_ids)));
  return relayout(tensor, Layout::replicated(internal::with_runtime(mesh, rep.runtime),
                                             static_cast<int>(rep.shape->size())));
}

}  // namespace

StatusOr<internal::RawShard> DTensor::raw_to_host(DType dtype, absl::string_view function) const {
  TESSERA_RETURN_IF_ERROR(error_of(function));
  if (num_local_shards() == 0 || dtype != rep().dtype) {
    TESSERA_RETURN_IF_ERROR(check_dtype(function, dtype));
    return absl::FailedPreconditionError(absl::StrCat(
        function, ": client ", rep().runtime->job().client_id(), " owns no device of ",
        rep().layout->mesh().to_string(), "; relayout to a mesh that it belongs to first"));
  }
  TESSERA_RETURN_IF_ERROR(rep().runtime->devices().check_may_wait(function));
  if (rep().layout->is_fully_replicated()) return raw_shard(0, dtype);
  // One copy per client is enough: the first device of each client in the mesh gets it.
  std::map<int, int> first_device;
  for (const int id : rep().layout->mesh().device_ids()) {
    const auto [it, inserted] =
        first_device.try_emplace(rep().runtime->job().devices()[id].client_id, id);
    it->second = std::min(it->second, id);
  }
  std::vector<int> ids;
  for (const auto& [client, id] : first_device) ids.push_back(id);
  TESSERA_ASSIGN_OR_RETURN(const DTensor whole, whole_on(*this, std::move(ids)));
  return whole.raw_shard(0, dtype);
}

StatusOr<internal::RawShard> DTensor::raw_item(DType dtype) const {
  TESSERA_RETURN_IF_ERROR(error_of("item"));
  if (const int64_t count = num_elements(shape()); count != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("item() of a tensor of shape ", shape_to_string(shape()), ": it has ", count,
                     " elements, and item() is the value of one; use to_host()"));
  }
  return raw_to_host(dtype, "item");
}

StatusOr<std::optional<internal::RawShard>> DTensor::raw_gather_to(int client, DType dtype) const {
  TESSERA_RETURN_IF_ERROR(error_of("gather_to"));
  TESSERA_RETURN_IF_ERROR(check_dtype("gather_to", dtype));
  const JobConnection& job = rep().runtime->job();
  if (client < 0 || client >= job.num_clients()) {
    return absl::InvalidArgumentError(
        absl::StrCat("gather_to(", client, "): clients are 0 to ", job.num_clients() - 1));
  }
  const bool is_here = client == job.client_id();
  if (is_here) TESSERA_RETURN_IF_ERROR(rep().runtime->devices().check_may_wait("gather_to"));
  // A device of the client, by preference a device that has shards.
  const Mesh& mesh = rep().layout->mesh();
  std::optional<int> in_mesh;
  std::optional<int> target;
  for (const Device& device : job.devices()) {
    if (device.client_id != client) continue;
    if (!target.has_value()) target = device.id;
    if (!in_mesh.has_value() && mesh.position_of_device(device.id).has_value()) {
      in_mesh = device.id;
    }
  }
  if (in_mesh.has_value() && rep().layout->is_fully_replicated()) {
    if (!is_here) return std::nullopt;
    TESSERA_ASSIGN_OR_RETURN(internal::RawShard shard, raw_shard(0, dtype));
    return shard;
  }
  TESSERA_ASSIGN_OR_RETURN(const DTensor whole, whole_on(*this, {in_mesh.value_or(*target)}));
  if (!is_here) {
    // An error that all clients know, as of the client's shutdown.
    TESSERA_RETURN_IF_ERROR(internal::TensorAccess::rep(whole).error);
    return std::nullopt;
  }
  TESSERA_ASSIGN_OR_RETURN(internal::RawShard shard, whole.raw_shard(0, dtype));
  return shard;
}

StatusOr<internal::RawShard> internal::to_host_raw(const DTensor& tensor) {
  return TensorAccess::raw_to_host(tensor);
}

}  // namespace tessera
