// SPDX-License-Identifier: Apache-2.0
//
// agree_on_call: the first round of a collective call, in which clients find out whether they make
// the same call with equal arguments. Thread-safe, as Rounds. Internal to checkpoint/.
//
//   client 0   restore "run/a"   w under [x, -] on {x=4}     --> InvalidArgument: client 0 (...)
//   asks client 1   restore "run/a"   w under [-, x] on {x=4}         for w under [x, -] ...,
//   client 1 ...
//
// The round carries a checksum of the arguments. Only where checksums differ, a second round
// carries the arguments, to name the first argument that differs.
#ifndef TESSERA_CHECKPOINT_CALL_AGREEMENT_H_
#define TESSERA_CHECKPOINT_CALL_AGREEMENT_H_

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/status.h"
#include "dtensor/client.h"
#include "dtensor/rounds.h"

namespace tessera::checkpoint::internal {

using tessera::internal::Rounds;

struct CallText {
  std::string call;                // "save \"run/step-0000000100\"", also in reports of long waits
  std::vector<std::string> lines;  // the arguments, one line each
};

// `refused`: the error by which this client refuses its own call. If all clients make the same call
// and none refuses it, client 0 calls `then`, whose result all get.
Rounds::Value agree_on_call(const Client& client, Rounds& rounds, const CallText& mine,
                            const Status& refused, absl::FunctionRef<Rounds::Value()> then);

}  // namespace tessera::checkpoint::internal

#endif  // TESSERA_CHECKPOINT_CALL_AGREEMENT_H_
