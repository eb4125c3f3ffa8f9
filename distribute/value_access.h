// SPDX-License-Identifier: Apache-2.0
//
// ValueAccess: from a PerReplica to its representation, and back. Internal to distribute/.
#ifndef TESSERA_DISTRIBUTE_VALUE_ACCESS_H_
#define TESSERA_DISTRIBUTE_VALUE_ACCESS_H_

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/status.h"
#include "distribute/values.h"
#include "dtensor/dtensor.h"

namespace tessera::distribute {

struct PerReplica::Rep {
  std::shared_ptr<const internal::Replicas> replicas;
  // The tensors of the local replicas; none where there is an error.
  std::vector<DTensor> tensors;
  Status error;
  // The tensors that local() returns for indices out of range, by index: a reference outlives the
  // call.
  mutable std::mutex mutex;
  mutable std::map<int, DTensor> out_of_range;  // guarded by mutex
};

namespace internal {

struct ValueAccess {
  using Rep = PerReplica::Rep;

  static PerReplica make(std::shared_ptr<const Replicas> replicas, std::vector<DTensor> tensors,
                         Status error = absl::OkStatus()) {
    auto rep = std::make_shared<PerReplica::Rep>();
    rep->replicas = std::move(replicas);
    rep->tensors = std::move(tensors);
    rep->error = std::move(error);
    return PerReplica(std::move(rep));
  }
  static PerReplica failed(std::shared_ptr<const Replicas> replicas, Status error) {
    return make(std::move(replicas), {}, std::move(error));
  }
  static const PerReplica::Rep& rep(const PerReplica& value) { return *value.rep_; }
};

}  // namespace internal
}  // namespace tessera::distribute

#endif  // TESSERA_DISTRIBUTE_VALUE_ACCESS_H_
