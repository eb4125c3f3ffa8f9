// SPDX-License-Identifier: Apache-2.0
//
// DeviceMover: moves the bytes of a group whose members have memory that is not the host's.
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
//
// In a group of several clients no member has the addresses of the others. Members then tell each
// other what to send, as encoded requests and on the board of their entries, and an operation may
// fail while devices run it.
#ifndef TESSERA_COLLECTIVES_HOST_DEVICE_MOVER_H_
#define TESSERA_COLLECTIVES_HOST_DEVICE_MOVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "collectives/arguments.h"
#include "collectives/collective.h"
#include "collectives/move.h"
#include "shm/group_table.h"

namespace tessera::host {

// The mover of one group. Thread-safe; `seq` is the number of the operation, and `member` a
// position in the group whose device is this client's.
class DeviceMover {
 public:
  virtual ~DeviceMover() = default;
  // Errors of an operation that all members detect before they meet.
  virtual Status check(const Collective& /*collective*/) const { return absl::OkStatus(); }
  // What the others need to know of the member's part, beside the counts of an all_to_all:
  // MemberMemory::counts of move(). Nothing where it is empty.
  virtual std::vector<int64_t> encode_request(const Collective& /*collective*/) const { return {}; }
  // `board`: kInlineBytes of the member's entry, for MemberMemory::board of move().
  virtual Status arrive(const Collective& collective, const Arguments& arguments, uint32_t seq,
                        int member, absl::Span<std::byte> board) = 0;
  // Pointers are to memory of devices. Returns when the work is given to the device; the receiver
  // of a message when the bytes are there, for its Work orders it against everything else.
  virtual Status move(const Collective& collective, const Arguments& arguments, uint32_t seq,
                      int member, absl::Span<const MemberMemory> members) = 0;
  virtual Status leave(uint32_t seq, int member) = 0;
  // Blocks until the member's device has done its queued work. DeadlineExceeded, or the device's
  // error.
  virtual Status wait_done(int member, absl::Time deadline) = 0;

  // The operation failed after move() was called. Only for groups of several clients.
  virtual void fail(uint32_t /*seq*/, int /*member*/, const Status& /*error*/) {}
  // A member is lost: ends the work that devices are doing for the group.
  virtual void lose(const Status& /*reason*/) {}
  // The client ends: messages wait for no device any more, and fail with the reason.
  virtual void close(const Status& /*reason*/) {}
  // For a message between clients: copies what the sender arrived with (Arguments::in) to memory of
  // the host. Ends by the deadline of the run, and at once after fail(), lose() or close().
  virtual Status fetch(const Collective& /*collective*/, const Arguments& /*arguments*/,
                       uint32_t /*seq*/, std::byte* /*to*/) {
    return absl::UnimplementedError("messages through the host");
  }
};

// Makes the mover of a group of these members, at least one of which is a device of this client.
using MakeDeviceMover = std::function<StatusOr<std::unique_ptr<DeviceMover>>(
    absl::Span<const shm::GroupMember> members)>;

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_DEVICE_MOVER_H_
