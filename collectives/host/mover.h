// SPDX-License-Identifier: Apache-2.0
//
// Mover: moves a member's part of the bytes, with the kernels of the CPU or by a DeviceMover.
//
// The one place that knows whether the memory of a group is the host's; runs and protocols ask it.
// A barrier moves nothing, so it is a run of the host in every group.
//
// Thread-safe.
#ifndef TESSERA_COLLECTIVES_HOST_MOVER_H_
#define TESSERA_COLLECTIVES_HOST_MOVER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "collectives/arguments.h"
#include "collectives/collective.h"
#include "collectives/host/device_mover.h"
#include "collectives/move.h"

namespace tessera::host {

class Mover {
 public:
  // `device` is null where memory is the host's.
  Mover(std::unique_ptr<DeviceMover> device, bool spans_clients)
      : device_(std::move(device)), spans_clients_(spans_clients) {}

  // Whether the memory of the group is a device's.
  bool has_device() const { return device_ != nullptr; }
  // Whether a device moves the bytes of the Collective. Its work finishes later than the task.
  bool is_on_device(const Collective& collective) const {
    return device_ != nullptr && collective.kind() != OpKind::kBarrier;
  }
  // Whether members publish the addresses of their memory: not for devices of several clients.
  bool shares_addresses(const Collective& collective) const {
    return !is_on_device(collective) || !spans_clients_;
  }

  // Errors of a run that all members detect before they meet.
  Status check(const Collective& collective) const {
    return is_on_device(collective) ? device_->check(collective) : absl::OkStatus();
  }
  // Before the member arrives. `board`: of its entry.
  Status arrive(const Collective& collective, const Arguments& arguments, uint32_t seq, int member,
                absl::Span<std::byte> board) {
    if (!is_on_device(collective)) return absl::OkStatus();
    return device_->arrive(collective, arguments, seq, member, board);
  }
  // What the others need to know of the member's part: MemberMemory::counts.
  std::vector<int64_t> encode_request(const Collective& collective) const {
    if (collective.needs_peer_counts()) return collective.own_counts();
    return is_on_device(collective) ? device_->encode_request(collective) : std::vector<int64_t>();
  }
  // Copies the input to memory of the host, for members that cannot read it in place.
  Status fetch(const Collective& collective, const Arguments& arguments, uint32_t seq,
               std::byte* to) {
    return device_->fetch(collective, arguments, seq, to);
  }
  // Moves the bytes of the member's part, or gives that work to its device. Without the label where
  // the CPU moves them.
  Status move(const Collective& collective, const Arguments& arguments, uint32_t seq, int member,
              absl::Span<const MemberMemory> members) {
    if (!is_on_device(collective)) return move_bytes(collective, members);
    return device_->move(collective, arguments, seq, member, members);
  }
  // Once all have given their parts to their devices.
  Status leave(const Collective& collective, uint32_t seq, int member) {
    return is_on_device(collective) ? device_->leave(seq, member) : absl::OkStatus();
  }
  // The run failed after move() was called.
  void fail(const Collective& collective, uint32_t seq, int member, const Status& error) {
    if (is_on_device(collective)) device_->fail(seq, member, error);
  }
  // For a barrier: waits until the member's device has done all earlier work, or `is_over`.
  // DeadlineExceeded, or the error of the device.
  Status wait_for_device(const Collective& collective, int member, absl::Time deadline,
                         absl::FunctionRef<bool()> is_over);

  void lose(const Status& reason) {
    if (device_ != nullptr) device_->lose(reason);
  }
  void close(const Status& reason) {
    if (device_ != nullptr) device_->close(reason);
  }

 private:
  const std::unique_ptr<DeviceMover> device_;
  const bool spans_clients_;
};

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_MOVER_H_
