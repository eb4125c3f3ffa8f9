// SPDX-License-Identifier: Apache-2.0
//
// DeviceMover: what moves the bytes of a group whose members' memory is not the host's.
//
// Members meet on the host as those of any group do: nothing is given to a device before all have
// arrived and agree, so that deadlines, disagreements and losses are the host's business alone.
// Then, instead of move_bytes(), each member gives its device its part of the work:
//
//   arrive()   before the member arrives; what its stream was given so far comes first
//   move()     once all have arrived: the member's part, after what all arrived with
//   leave()    once all have given theirs: what the member's stream gets next comes after all parts
//
// A barrier moves nothing: a member arrives at it when its device is idle (wait_done()), and its
// memory is the host's.
#ifndef TESSERA_COLLECTIVES_HOST_DEVICE_MOVER_H_
#define TESSERA_COLLECTIVES_HOST_DEVICE_MOVER_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "collectives/call.h"
#include "collectives/host/move.h"

namespace tessera::host {

// Of one group. Thread-safe; `seq` is the number of the operation, and `member` a position in the
// group whose device is this client's.
class DeviceMover {
 public:
  virtual ~DeviceMover() = default;
  virtual Status arrive(uint32_t seq, int member) = 0;
  // Pointers are to memory of devices. Returns when the work is given to the device; the receiver
  // of a message when the bytes are there, for its Work orders it against everything else.
  virtual Status move(const CollectiveCall& call, uint32_t seq, int member,
                      absl::Span<const MemberMemory> members) = 0;
  virtual Status leave(uint32_t seq, int member) = 0;
  // Until the member's device has done all that it was given; DeadlineExceeded, or its error.
  virtual Status wait_done(int member, absl::Time deadline) = 0;
};

using MakeDeviceMover =
    std::function<StatusOr<std::unique_ptr<DeviceMover>>(absl::Span<const int> device_ids)>;

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_DEVICE_MOVER_H_
