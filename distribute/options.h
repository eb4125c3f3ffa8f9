// SPDX-License-Identifier: Apache-2.0
//
// The options of a strategy, of its calls and of its variables.
//
// Values. A field that is not set leaves the choice to the next level: a call, then its run, then
// the strategy, then the default.
#ifndef TESSERA_DISTRIBUTE_OPTIONS_H_
#define TESSERA_DISTRIBUTE_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "base/public.h"

namespace TESSERA_PUBLIC tessera {
namespace distribute {

enum class CommunicationImplementation : uint8_t { kAuto, kRing, kNccl };

// Options of one call; fields that are set win over the strategy's.
struct CommunicationOptions {
  // Small tensors of one call travel together, up to so many bytes; 0: by the cost of a message.
  std::optional<int64_t> bytes_per_pack = {};
  // DeadlineExceeded when the other clients do not make the call for so long.
  std::optional<absl::Duration> timeout = {};
  // kRing: the host and UCX back ends. kNccl: FailedPrecondition on CPU devices.
  CommunicationImplementation implementation = CommunicationImplementation::kAuto;
  // Calls of different names never meet.
  std::string name = {};
};
struct RunOptions {
  // Also for the calls of its replica functions: the options of a call win, then these, then the
  // strategy's.
  CommunicationOptions communication = {};
};

class CrossDeviceOps;

struct StrategyOptions {
  CommunicationOptions communication = {};
  // How values of replicas are reduced; unset: collective_all_reduce().
  std::shared_ptr<CrossDeviceOps> cross_device_ops = {};
};

enum class VariableSynchronization : uint8_t {
  kAuto,     // kOnWrite
  kNone,     // InvalidArgument
  kOnWrite,  // all replicas have one value
  kOnRead,   // each replica has a component; reading aggregates them
};
enum class VariableAggregation : uint8_t { kNone, kSum, kMean, kOnlyFirstReplica };
enum class Trainable : uint8_t { kAuto, kYes, kNo };  // kAuto: no for kOnRead, else yes
// kAgree: clients compare 128 bits of their initial values.
enum class InitialValue : uint8_t { kAgree, kFromFirstReplica };
struct VariableOptions {
  VariableSynchronization synchronization = VariableSynchronization::kAuto;
  VariableAggregation aggregation = VariableAggregation::kNone;
  Trainable trainable = Trainable::kAuto;
  InitialValue initial = InitialValue::kAgree;
};

}  // namespace distribute
}  // namespace tessera

#endif  // TESSERA_DISTRIBUTE_OPTIONS_H_
