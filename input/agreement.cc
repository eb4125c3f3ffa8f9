// SPDX-License-Identifier: Apache-2.0
#include "input/agreement.h"

#include <algorithm>
#include <cstddef>
#include <map>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "dtensor/device_op.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "mesh/mesh_runtime.h"

namespace tessera::input::internal {

StatusOr<Agreement> Agreement::create(const Client& client, const Mesh& mesh, int64_t num_columns) {
  std::map<int, int> first_device;  // of each client
  for (const int id : mesh.device_ids()) {
    const auto [it, inserted] = first_device.try_emplace(client.devices()[id].client_id, id);
    it->second = std::min(it->second, id);
  }
  std::vector<int> clients, ids;
  for (const auto& [client_id, id] : first_device) {
    clients.push_back(client_id);
    ids.push_back(id);
  }
  TESSERA_ASSIGN_OR_RETURN(const Mesh abstract,
                           Mesh::create({{"client", static_cast<int64_t>(ids.size())}}, ids));
  const Mesh live = tessera::internal::with_runtime(abstract, tessera::internal::runtime_of(mesh));
  TESSERA_ASSIGN_OR_RETURN(Layout own, Layout::batch_sharded(live, "client", /*rank=*/2));
  TESSERA_ASSIGN_OR_RETURN(Layout all, Layout::replicated(live, /*rank=*/2));
  return Agreement(std::move(own), std::move(all), std::move(clients), num_columns);
}

StatusOr<std::vector<Agreement::Row>> Agreement::exchange(const StatusOr<Row>& row) const {
  const Shape shape = {static_cast<int64_t>(clients_.size()), num_columns_};
  // A client's error is passed on as the error of its part of the tensor.
  DTensor mine =
      row.ok() ? from_function<int64_t>(shape, own_,
                                        [&](const Box&, absl::Span<int64_t> out) {
                                          std::copy(row->begin(), row->end(), out.begin());
                                        })
               : tessera::internal::generate(
                     "input", DType::kInt64, shape, own_,
                     [status = row.status()](Engine*, const Box&, std::byte*) { return status; });
  const DTensor rows = relayout(std::move(mine), all_);
  TESSERA_ASSIGN_OR_RETURN(const ShardView<int64_t> view, rows.shard<int64_t>(0));
  std::vector<Row> result;
  for (size_t k = 0; k < clients_.size(); ++k) {
    const auto first = view.data.begin() + static_cast<int64_t>(k) * num_columns_;
    result.emplace_back(first, first + num_columns_);
  }
  return result;
}

}  // namespace tessera::input::internal
