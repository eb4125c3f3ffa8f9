// SPDX-License-Identifier: Apache-2.0
//
// ParameterStore: the shards of variables that one parameter server holds.
//
// A read sees all pushes of a run to this server or none of them. Which pushes count is decided by
// push_ledger.h.
//
// Thread-safe.
#ifndef TESSERA_DISTRIBUTE_PARAMETER_STORE_H_
#define TESSERA_DISTRIBUTE_PARAMETER_STORE_H_

#include <map>
#include <memory>
#include <shared_mutex>
#include <string>
#include <utility>

#include "base/dtype.h"
#include "base/host_array.h"
#include "base/status.h"
#include "distribute/push_ledger.h"

namespace tessera::distribute::internal {

class ParameterStore {
 public:
  // The same call may come again.
  Status create(int variable, int shard, const std::string& name, HostArray value);
  // The value, which nothing changes from then on: pushes make another.
  StatusOr<std::shared_ptr<const std::string>> read(int variable, int shard) const;
  // InvalidArgument where the push does not have the size of the shard.
  Status stage(const RunKey& run, int index, Push push);
  Status update(const ServerUpdate& update);

 private:
  struct Shard {
    DType dtype = DType::kFloat32;
    std::shared_ptr<const std::string> bytes;
  };

  StatusOr<const Shard*> find(int variable, int shard) const;
  void apply(Push push);

  mutable std::shared_mutex mutex_;  // guards what follows
  std::map<std::pair<int, int>, Shard> shards_;
  PushLedger ledger_;
};

}  // namespace tessera::distribute::internal

#endif  // TESSERA_DISTRIBUTE_PARAMETER_STORE_H_
