// SPDX-License-Identifier: Apache-2.0
//
// The parts of the suite for engines (engine_conformance.h): helpers for its programs, and the
// cases in which connections end.
#ifndef TESSERA_TRANSPORT_TESTING_ENGINE_LOSSES_H_
#define TESSERA_TRANSPORT_TESTING_ENGINE_LOSSES_H_

#include <numeric>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/status.h"
#include "transport/testing/engine_conformance.h"

namespace tessera::transport {

inline int self(const EngineMember& m) { return m.coordinator.client_id(); }
inline absl::Time soon() { return steady_now() + absl::Minutes(1); }

// The memory of a number.
template <class T>
absl::Span<std::byte> bytes_of(T& value) {
  return {reinterpret_cast<std::byte*>(&value), sizeof value};
}

inline std::vector<int> others(const EngineMember& m) {
  std::vector<int> clients(m.coordinator.num_clients());
  std::iota(clients.begin(), clients.end(), 0);
  clients.erase(clients.begin() + self(m));
  return clients;
}

// Waits for the other clients, or for `clients` where given.
inline Status barrier(EngineMember& m, absl::string_view name, std::vector<int> clients = {}) {
  if (clients.empty()) {
    clients = others(m);
    clients.insert(clients.begin() + self(m), self(m));
  }
  return m.coordinator.check_in(name, "", clients, soon());
}

// The program on an engine that is connected to all.
template <Status (*run)(EngineMember&)>
Status connected(EngineMember& m) {
  TESSERA_RETURN_IF_ERROR(m.engine.connect(others(m), soon()));
  return run(m);
}

std::vector<EngineCase> loss_cases();

}  // namespace tessera::transport

#endif  // TESSERA_TRANSPORT_TESTING_ENGINE_LOSSES_H_
