// SPDX-License-Identifier: Apache-2.0
//
// InputOptions: how the clients of a strategy share the reading of a data set (dataset.h).
#ifndef TESSERA_DISTRIBUTE_INPUT_OPTIONS_H_
#define TESSERA_DISTRIBUTE_INPUT_OPTIONS_H_

#include <cstdint>

#include "base/public.h"
#include "input/loader.h"

namespace TESSERA_PUBLIC tessera {
namespace distribute {

enum class AutoShardPolicy : uint8_t {
  kAuto,  // kData
  kData,  // the global order: step s is the same for any number of replicas and clients
  kFile,  // a pipeline for each client, of files i, i + n, ...
  kOff,   // a pipeline for each client, of everything
};
// Pipelines of distribute_datasets_from_function().
enum class InputReplicationMode : uint8_t { kPerWorker, kPerReplica };
enum class AtEnd : uint8_t { kAll, kFirst };

struct InputOptions {
  InputReplicationMode replication_mode = InputReplicationMode::kPerWorker;
  AutoShardPolicy auto_shard = AutoShardPolicy::kAuto;
  AtEnd at_end = AtEnd::kAll;
  input::LoadOptions load = {};
};

}  // namespace distribute
}  // namespace tessera

#endif  // TESSERA_DISTRIBUTE_INPUT_OPTIONS_H_
