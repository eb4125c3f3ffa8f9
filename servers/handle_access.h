// SPDX-License-Identifier: Apache-2.0
//
// RemoteDatasetAccess, VariableAccess: make the handles of a ClusterCoordinator from the places of
// its data sets and variables, and give the places back. Internal to servers/.
//
// Places are values; a handle's does not change, so any thread may read it.
#ifndef TESSERA_SERVERS_HANDLE_ACCESS_H_
#define TESSERA_SERVERS_HANDLE_ACCESS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "input/source.h"
#include "servers/remote_dataset.h"
#include "servers/remote_variable.h"
#include "servers/variable_place.h"

namespace tessera::distribute::internal {

struct DatasetPlace {
  std::string name = {};  // of the function that makes it
  uint64_t chief = 0;     // the coordinator that made it
  int number = 0;         // among its data sets
  int num_workers = 1;
  std::vector<input::TensorSpec> spec = {};
};

struct RemoteDatasetAccess {
  static RemoteDataset make(DatasetPlace place) {
    return RemoteDataset(std::make_shared<const DatasetPlace>(std::move(place)));
  }
  static const DatasetPlace& place(const RemoteDataset& dataset) { return *dataset.place_; }
};

struct VariableAccess {
  static RemoteVariable make(VariablePlace place) {
    return RemoteVariable(std::make_shared<const VariablePlace>(std::move(place)));
  }
  static const VariablePlace& place(const RemoteVariable& variable) { return *variable.place_; }
};

}  // namespace tessera::distribute::internal

#endif  // TESSERA_SERVERS_HANDLE_ACCESS_H_
