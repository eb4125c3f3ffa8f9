// SPDX-License-Identifier: Apache-2.0
//
// What the devices of a client wait in, as the client tells the coordinator, and the steps by which
// the coordinator ends a circle of such waits (circles.h).
#ifndef TESSERA_JOB_COORDINATOR_DEVICE_WAIT_H_
#define TESSERA_JOB_COORDINATOR_DEVICE_WAIT_H_

#include <compare>
#include <cstddef>
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
  RunId run;
  bool spans_hosts = false;
  uint64_t name_hash = 0;  // of a named barrier; 0: another run
  std::string label;
  std::vector<IdRanges::Range> group;  // the devices of the run: IdRanges::list_of()
  // Those that have not arrived, as far as the client knows: one may have, meanwhile.
  IdRanges missing;
};

// One step of ending a circle, for one client.
struct CircleStep {
  enum Kind : int {
    kNone,     // there is no circle, or no more
    kConfirm,  // to say whether confirms() holds for each wait of its own devices
    kEnd,      // to end the run of circle[at], and to hold its device if `at` is 0
    kRelease,  // to let the device of circle[0] go on, if it is this client's
  };
  Kind kind = kNone;
  uint64_t number = 0;  // of the circle
  size_t at = 0;
  // Each waits for the device of the next one, the last for that of the first, whose run is of
  // several hosts.
  std::vector<DeviceWait> circle = {};
};

// What a client reports: the long waits of its devices, and what has become of its last step.
struct WaitsReport {
  std::vector<DeviceWait> waits = {};
  uint64_t circle = 0;   // the number in the step; 0: there was none
  bool is_done = false;  // it was confirmed, or the run has ended
};

// What confirms() asks a client.
struct DeviceWaitSource {
  absl::FunctionRef<bool(int device)> is_own;
  // The run in which an own device waits now.
  absl::FunctionRef<std::optional<RunId>(int device)> run_of;
  // Whether an own device has arrived in the run, which may be over.
  absl::FunctionRef<bool(int device, const RunId& run)> has_arrived;
};
// Whether the circle holds as far as this client knows: each of its devices in the circle still
// waits in its run, and has not arrived in the run before.
bool confirms(const std::vector<DeviceWait>& circle, const DeviceWaitSource& client);

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_DEVICE_WAIT_H_
