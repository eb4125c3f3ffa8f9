// SPDX-License-Identifier: Apache-2.0
//
// DTensor::to_host(): the whole tensor in the memory of every client, by a relayout.
#include "dtensor/to_host.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "dtensor/tensor_access.h"
#include "dtensor/tensor_rep.h"
#include "mesh/mesh_runtime.h"

namespace tessera {

StatusOr<internal::RawShard> DTensor::raw_to_host(DType dtype) const {
  TESSERA_RETURN_IF_ERROR(rep().error);
  if (num_local_shards() == 0 || dtype != rep().dtype) {
    TESSERA_RETURN_IF_ERROR(check_dtype("to_host", dtype));
    return absl::FailedPreconditionError(absl::StrCat(
        "to_host: client ", rep().runtime->job().client_id(), " owns no device of ",
        rep().layout->mesh().to_string(), "; relayout to a mesh that it belongs to first"));
  }
  TESSERA_RETURN_IF_ERROR(rep().runtime->devices().check_may_wait("to_host"));
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
  TESSERA_ASSIGN_OR_RETURN(const Mesh clients,
                           Mesh::create({{"client", static_cast<int64_t>(ids.size())}}, ids));
  const DTensor whole =
      relayout(*this, Layout::replicated(internal::with_runtime(clients, rep().runtime),
                                         static_cast<int>(rep().shape->size())));
  return whole.raw_shard(0, dtype);
}

StatusOr<internal::RawShard> internal::to_host_raw(const DTensor& tensor) {
  return TensorAccess::raw_to_host(tensor);
}

}  // namespace tessera
