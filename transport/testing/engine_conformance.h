// SPDX-License-Identifier: Apache-2.0
//
// The contract of Engine as one suite for all engines, as programs that each client of a small job
// runs.
//
//   for (const EngineCase& c : engine_cases()) ... run_as_processes(c, make_ucx)   // is OK
//
// A test of an engine runs each case as threads of one process and as processes; an engine with a
// launcher of its own calls EngineCase::run in each of its processes.
#ifndef TESSERA_TRANSPORT_TESTING_ENGINE_CONFORMANCE_H_
#define TESSERA_TRANSPORT_TESTING_ENGINE_CONFORMANCE_H_

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "base/status.h"
#include "job/coordinator/coordinator.h"
#include "transport/engine.h"

namespace tessera::transport {

// The properties in which engines differ.
struct EngineTraits {
  // The engine notices by itself that the process of a peer has ended.
  bool finds_death = true;
};

// One client's view of a running case. The engine may be replaced and stopped by the case.
struct EngineMember {
  Coordinator& coordinator;
  Engine& engine;
  EngineTraits traits;
};

struct EngineCase {
  const char* name;
  int num_clients;
  Status (*run)(EngineMember& member);
  // Client 1 is stopped or killed: it needs a process of its own, and its result does not count.
  bool loses_client_1 = false;
};

const std::vector<EngineCase>& engine_cases();
std::ostream& operator<<(std::ostream& out, const EngineCase& c);

using MakeEngine = std::function<StatusOr<std::unique_ptr<Engine>>(Coordinator& coordinator)>;

// Runs the case; the first error of a client. `as_threads` needs !loses_client_1.
Status run_as_threads(const EngineCase& c, const MakeEngine& make, EngineTraits traits = {});
Status run_as_processes(const EngineCase& c, const MakeEngine& make, EngineTraits traits = {});
// Runs this process as a client of the case, in a job that another launcher has started: the
// coordinator of the case is at `address`, where client 0 hosts it.
Status run_as_client(const EngineCase& c, const MakeEngine& make, EngineTraits traits,
                     const std::string& address, int client);

}  // namespace tessera::transport

#endif  // TESSERA_TRANSPORT_TESTING_ENGINE_CONFORMANCE_H_
