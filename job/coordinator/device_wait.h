// SPDX-License-Identifier: Apache-2.0
//
// DeviceWait: a wait of a device, as its client reports it to the coordinator. CircleStep: a step
// by which the coordinator ends a circle of such waits (circles.h).
#ifndef TESSERA_JOB_COORDINATOR_DEVICE_WAIT_H_
#define TESSERA_JOB_COORDINATOR_DEVICE_WAIT_H_

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "job/coordinator/id_ranges.h"

namespace tessera {

// A run of a group, the same on all clients.
struct RunId {
  uint64_t group = 0;
  uint32_t seq = 0;

  friend auto operator<=>(const RunId&, const RunId&) = default;
};

// A device that waits in a run for others to arrive there.
struct DeviceWait {
  int device = 0;
  RunId run = {};
  bool spans_hosts = false;
  uint64_t name_hash = 0;  // of a named barrier; 0: another run
  std::string label = {};
  std::vector<IdRanges::Range> group = {};  // the devices of the run: IdRanges::list_of()
  // The members that have not arrived, as far as the client knows; some may have arrived meanwhile.
  IdRanges missing = {};
};

// One step of ending a circle, for one client.
struct CircleStep {
  enum Kind : int {
    kNone,     // there is no circle, or no more
    kConfirm,  // to say whether confirms(waits) holds
    kEnd,      // to end the run of waits[1], once the verdict of waits[0] is known
    kRelease,  // as kEnd; release the held device of waits[1]; no waits: nothing to do
  };
  Kind kind = kNone;
  uint64_t number = 0;  // of the circle
  uint32_t at = 0;      // of kEnd: 1 for the first wait, whose device is held, and so on
  // Pairs: a wait, and the wait of this client's device for which it waits.
  std::vector<DeviceWait> waits = {};
  // kEnd: the waits that the error names, equal on all clients.
  std::vector<DeviceWait> named = {};
};

// A report of a client: the long waits of its devices, and the result of its last step.
struct WaitsReport {
  std::vector<DeviceWait> waits = {};
  uint64_t circle = 0;  // `number` and `at` of the step; 0: there was none
  uint32_t at = 0;
  bool is_done = false;  // it was confirmed, or the run has ended
};

// Whether a circle exists as far as a client knows: each of its devices in these pairs still waits
// in its run (`run_of`: the run in which a device waits now), and has not arrived in the run
// before.
bool confirms(const std::vector<DeviceWait>& pairs,
              absl::FunctionRef<std::optional<RunId>(int device)> run_of,
              absl::FunctionRef<bool(int device, const RunId& run)> has_arrived);

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_DEVICE_WAIT_H_
