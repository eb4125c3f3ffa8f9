// SPDX-License-Identifier: Apache-2.0
//
// ParameterStore: the shards of variables that one parameter server holds.
//
// A read sees all pushes of a run to this server or none of them. Which pushes count is decided by
// push_ledger.h.
//
// Invariants:
//   1. A value that was read does not change: a push makes another, in the memory of the push.
//   2. A shard has the memory of its value, and of at most one more that was its value before.
//
// Thread-safe.
#ifndef TESSERA_SERVERS_PARAMETER_STORE_H_
#define TESSERA_SERVERS_PARAMETER_STORE_H_

#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>

#include "base/dtype.h"
#include "base/host_array.h"
#include "base/status.h"
#include "servers/push_ledger.h"

namespace tessera::distribute::internal {

class ParameterStore {
 public:
  // Does nothing for a repeated call.
  Status create(int variable, int shard, const std::string& name, HostArray value);
  // The value, which nothing changes from then on: pushes make another.
  StatusOr<std::shared_ptr<const std::string>> read(int variable, int shard) const;
  // An empty string for the bytes of a push to this shard, with memory that was used before if
  // there is any: to write into fresh memory takes several times as long.
  std::string spare_memory(int variable, int shard) const;
  // InvalidArgument where the push does not have the size of the shard.
  Status stage(const RunKey& run, int index, Push push);
  Status update(const ServerUpdate& update);

 private:
  using Value = std::shared_ptr<const std::string>;
  // The memory of one value that a push has replaced and that no read holds any more.
  struct Spare {
    std::mutex mutex;
    std::string memory;
  };
  struct Shard {
    DType dtype = DType::kFloat32;
    std::shared_ptr<Spare> spare;
    Value bytes;
  };

  // Its memory becomes the spare one when the last reference is gone.
  static Value value_of(std::string bytes, std::shared_ptr<Spare> spare);

  StatusOr<const Shard*> find(int variable, int shard) const;
  void apply(Push push);

  mutable std::shared_mutex mutex_;  // guards the members below
  std::map<std::pair<int, int>, Shard> shards_;
  PushLedger ledger_;
};

}  // namespace tessera::distribute::internal

#endif  // TESSERA_SERVERS_PARAMETER_STORE_H_
