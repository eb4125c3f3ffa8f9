// SPDX-License-Identifier: Apache-2.0
//
// What is behind Group: the back end that executes the collectives of a group, and the member that
// a Group is a handle of. Internal: programs see group.h alone.
#ifndef TESSERA_COLLECTIVES_GROUP_BACKEND_H_
#define TESSERA_COLLECTIVES_GROUP_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/types/span.h"
#include "base/reduce_op.h"
#include "base/status.h"
#include "collectives/arguments.h"
#include "collectives/collective.h"
#include "collectives/memory.h"
#include "collectives/prepared.h"
#include "collectives/work.h"

namespace tessera {

// What executes the collectives of one group, such as the host's shared memory or NCCL.
class GroupBackend {
 public:
  virtual ~GroupBackend() = default;
  // Ids of the members' devices, in group order.
  virtual absl::Span<const int> device_ids() const = 0;
  // Starts a run of the Collective for its member, which must be a device of this client: the one
  // at place(), of a message the end that place() says.
  virtual Work start(Collective::Ptr collective, Arguments arguments) = 0;
};

namespace internal {

// One member of a group. Thread-safe as Group is.
class GroupMember {
 public:
  // `order`: of the reductions; equal on all members.
  GroupMember(std::shared_ptr<GroupBackend> backend, int position, ReductionOrder order)
      : backend_(std::move(backend)), position_(position), order_(order) {}

  absl::Span<const int> device_ids() const { return backend_->device_ids(); }
  int size() const { return static_cast<int>(device_ids().size()); }
  int position() const { return position_; }
  ReductionOrder order() const { return order_; }

  // Any operation as this member, except a message. Arguments that are wrong become the error of
  // the operation on all members.
  Work start(const CollectiveSpec& spec, const CallMemory& memory, Arguments arguments = {}) const {
    return start({.num_members = size(), .position = position_}, spec, memory,
                 std::move(arguments));
  }
  // As the member at `place`; of a message one of its two ends.
  Work start(GroupPlace place, const CollectiveSpec& spec, const CallMemory& memory,
             Arguments arguments) const;

 private:
  // The Collective of the call, perhaps prepared for an earlier call; Collective::refused() where
  // the call is wrong.
  Collective::Ptr prepare(GroupPlace place, const CollectiveSpec& spec, const CallMemory& memory,
                          const Arguments& arguments) const;

  const std::shared_ptr<GroupBackend> backend_;
  const int position_;
  const ReductionOrder order_;
  mutable PreparedCollectives prepared_;
};

}  // namespace internal
}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_GROUP_BACKEND_H_
