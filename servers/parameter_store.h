// SPDX-License-Identifier: Apache-2.0
//
// ParameterStore: the shards of variables that one parameter server holds.
//
// A read sees all pushes of a run to this server or none of them. push_ledger.h decides which
// pushes count.
//
// Invariants:
//   1. A value that a read has returned does not change: a push makes a new value, in the memory of
//      the push.
//   2. A shard has the memory of its value, and of at most one earlier value.
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
  // A repeated call does nothing.
  Status create(int variable, int shard, const std::string& name, HostArray value);
  // The current value. It never changes, because pushes make new values.
  StatusOr<std::shared_ptr<const std::string>> read(int variable, int shard) const;
  // An empty string to receive the bytes of a push to this shard. It reuses the memory of an
  // earlier value if there is any: writing into fresh memory takes several times as long.
  std::string spare_memory(int variable, int shard) const;
  // InvalidArgument for a push whose size is not the shard's.
  Status stage(const RunKey& run, int index, Push push);
  Status update(const ServerUpdate& update);

 private:
  using Value = std::shared_ptr<const std::string>;
  // The memory of one earlier value that no read uses any more.
  struct Spare {
    std::mutex mutex;
    std::string memory;
  };
  struct Shard {
    DType dtype = DType::kFloat32;
    std::shared_ptr<Spare> spare;
    Value bytes;
  };

  // When the last reference is released, the memory becomes the spare one.
  static Value value_of(std::string bytes, std::shared_ptr<Spare> spare);

  StatusOr<const Shard*> find(int variable, int shard) const;
  void apply(Push push);

  mutable std::shared_mutex mutex_;  // guards the members below
  std::map<std::pair<int, int>, Shard> shards_;
  PushLedger ledger_;
};

}  // namespace tessera::distribute::internal

#endif  // TESSERA_SERVERS_PARAMETER_STORE_H_
