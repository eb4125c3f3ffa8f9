// SPDX-License-Identifier: Apache-2.0
//
// RegistryNames: the chief's list of the functions and data sets that the registries of all workers
// have. Not thread-safe.
#ifndef TESSERA_SERVERS_REGISTRY_NAMES_H_
#define TESSERA_SERVERS_REGISTRY_NAMES_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"

namespace tessera::distribute::internal {

class RegistryNames {
 public:
  // Adds the names of one worker. FailedPrecondition if they differ from the first worker's names;
  // the message names the worker that lacks a name.
  Status add(const std::string& worker, std::vector<std::string> functions,
             std::vector<std::string> datasets);

  // NotFound for an unknown name; the message lists the known names.
  Status check_function(absl::string_view name) const;
  Status check_dataset(absl::string_view name) const;

 private:
  std::string first_worker_;  // empty: add() was not called
  std::vector<std::string> functions_;
  std::vector<std::string> datasets_;
};

}  // namespace tessera::distribute::internal

#endif  // TESSERA_SERVERS_REGISTRY_NAMES_H_
