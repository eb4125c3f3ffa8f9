// SPDX-License-Identifier: Apache-2.0
//
// VariableTable: the variables of a ClusterCoordinator by name, and the parameter servers of their
// shards.
//
// Invariant: shards go to the parameter servers in turn, over all variables: the k-th shard ever
// added is on ps k mod num_ps.
//
// Not thread-safe.
#ifndef TESSERA_SERVERS_VARIABLE_TABLE_H_
#define TESSERA_SERVERS_VARIABLE_TABLE_H_

#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "servers/variable_place.h"

namespace tessera::distribute::internal {

class VariableTable {
 public:
  explicit VariableTable(int num_ps) : names_on_(num_ps) {}

  // Numbers a variable whose rows are known, and places its shards. InvalidArgument for a shard
  // larger than a message may be, AlreadyExists for a name that is in use. On an error nothing is
  // added.
  Status add(VariablePlace* place);
  // The names of the variables with shards on a parameter server: "v", "w" in quotes. Empty: none.
  std::string names_on(int ps) const;

 private:
  std::set<std::string> names_;
  std::vector<std::vector<std::string>> names_on_;  // by parameter server
  int num_variables_ = 0;
  int next_ps_ = 0;
};

}  // namespace tessera::distribute::internal

#endif  // TESSERA_SERVERS_VARIABLE_TABLE_H_
