// SPDX-License-Identifier: Apache-2.0
//
// Barriers: Mesh::barrier() among the devices of one client and others. Internal to dtensor/.
//
// The tensor behind a barrier: int32 of the mesh's shape, fully sharded, one 1 per device. A
// barrier sums it, and checks that the sum is the number of devices.
//
// Thread-safe.
#ifndef TESSERA_DTENSOR_BARRIERS_H_
#define TESSERA_DTENSOR_BARRIERS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "collectives/platform/client_devices.h"
#include "collectives/work.h"
#include "device/buffer.h"
#include "dtensor/mesh_devices.h"
#include "dtensor/turns.h"
#include "mesh/mesh.h"

namespace tessera {

class Programs;
struct BarrierPlan;

class Barriers {
 public:
  // The term that a device adds to the sum; empty: 1.
  using TermOf = std::function<int(int device_id)>;
  // All must outlive the object.
  Barriers(ClientDevices& devices, Turns& turns, Programs& programs, TermOf term_of)
      : devices_(devices), turns_(turns), programs_(programs), term_of_(std::move(term_of)) {}

  // As MeshRuntime::barrier().
  Status run(const Mesh& mesh, absl::string_view name, std::optional<absl::Duration> timeout);

 private:
  // Completes a barrier among idle devices of this client immediately: the sum of their terms.
  // False where the barrier needs a wait. Requires a turn.
  bool meet_here(const BarrierPlan& plan, int64_t* sum);
  // A device's part of a barrier that was started.
  struct Arrival {
    std::shared_ptr<Buffer> sum;
    std::optional<Work> work;
  };
  using Arrivals = absl::InlinedVector<Arrival, kInlineLocalDevices>;
  struct Call {
    absl::string_view name;
    std::optional<absl::Duration> timeout;
    absl::Time deadline;
  };
  // Gives all local devices their parts. Requires a turn.
  StatusOr<Arrivals> start(const BarrierPlan& plan, const Call& call);
  // Waits for all parts; returns the sum of the terms.
  static StatusOr<int64_t> await(const Arrivals& arrivals, const Call& call);
  int32_t term_at(int device_id) const { return term_of_ ? term_of_(device_id) : 1; }

  ClientDevices& devices_;
  Turns& turns_;
  Programs& programs_;
  const TermOf term_of_;
};

}  // namespace tessera

#endif  // TESSERA_DTENSOR_BARRIERS_H_
