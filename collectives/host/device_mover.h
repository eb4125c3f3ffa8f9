// SPDX-License-Identifier: Apache-2.0
//
// DeviceMover: moves the bytes of a group whose members have memory that is not the host's.
//
// Members meet on the host as in any group: a device receives no work before all members have
// arrived and agree. So deadlines, disagreements and losses are handled on the host alone. Then,
// instead of calling move_bytes(), each member gives its device its part of the work:
//
//   arrive()   before the member arrives; marks the work that its stream has received so far
//   move()     once all have arrived: the member's part, ordered after the marks of all members
//   leave()    once all have given their parts: orders later work of the stream after all parts
//
// In a barrier nothing moves: a member arrives when its device is idle (wait_done()), and the
// barrier uses memory of the host.
//
// In a group of several clients no member has the addresses of the others. Members then tell each
// other what to send, by encoded requests and by the board of their entries, and an operation may
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

// The mover of one group. Thread-safe. `seq` is the number of the operation; `member` is the
// position of a device of this client in the group.
class DeviceMover {
 public:
  virtual ~DeviceMover() = default;
  // Errors that all members detect before they meet.
  virtual Status check(const Collective& /*collective*/) const { return absl::OkStatus(); }
  // The data that other members need about the member's part, beside the counts of an all_to_all:
  // MemberMemory::counts of move(). Empty: no data.
  virtual std::vector<int64_t> encode_request(const Collective& /*collective*/) const { return {}; }
  // `board`: kInlineBytes of the member's entry, for MemberMemory::board of move().
  virtual Status arrive(const Collective& collective, const Arguments& arguments, uint32_t seq,
                        int member, absl::Span<std::byte> board) = 0;
  // Moves the member's part; pointers are to memory of devices. Returns when the device has the
  // work. For the receiver of a message it returns when the bytes have arrived, because the Work of
  // the receiver orders the message against everything else.
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
  // For a message between clients: copies the sender's input (Arguments::in) to memory of the host.
  // Ends by the deadline of the run, and immediately after fail(), lose() or close().
  virtual Status fetch(const Collective& /*collective*/, const Arguments& /*arguments*/,
                       uint32_t /*seq*/, std::byte* /*to*/) {
    return absl::UnimplementedError("messages through the host");
  }
};

// Makes the mover of a group of these members. At least one member must be a device of this client.
using MakeDeviceMover = std::function<StatusOr<std::unique_ptr<DeviceMover>>(
    absl::Span<const shm::GroupMember> members)>;

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_DEVICE_MOVER_H_
