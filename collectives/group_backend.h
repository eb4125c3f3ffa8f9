// SPDX-License-Identifier: Apache-2.0
//
// The implementation behind Group: the back end that executes the collectives of a group, and the
// member to which a Group is a handle. Internal: programs use only group.h.
#ifndef TESSERA_COLLECTIVES_GROUP_BACKEND_H_
#define TESSERA_COLLECTIVES_GROUP_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/types/span.h"
#include "base/public.h"
#include "base/reduce_op.h"
#include "base/status.h"
#include "collectives/arguments.h"
#include "collectives/collective.h"
#include "collectives/memory.h"
#include "collectives/prepared.h"
#include "collectives/work.h"

namespace tessera {

// Executes the collectives of one group: runs of one host, or runs that span hosts.
class GroupBackend {
 public:
  virtual ~GroupBackend() = default;
  // Ids of the members' devices, in group order.
  virtual absl::Span<const int> device_ids() const = 0;
  // Starts a run of the Collective for its member, which must be a device of this client: the
  // member at place(), or in a message the end that place() names.
  virtual Work start(Collective::Ptr collective, Arguments arguments) = 0;
};

namespace internal {

// One member of a group. Thread-safe as Group is.
class TESSERA_INTERNAL GroupMember {
 public:
  // `order`: the order of the reductions; equal on all members.
  GroupMember(std::shared_ptr<GroupBackend> backend, int position, ReductionOrder order)
      : backend_(std::move(backend)), position_(position), order_(order) {}

  absl::Span<const int> device_ids() const { return backend_->device_ids(); }
  int size() const { return static_cast<int>(device_ids().size()); }
  int position() const { return position_; }
  ReductionOrder order() const { return order_; }

  // Starts any operation as this member, except a message. Wrong arguments become the error of the
  // operation on all members.
  Work start(const CollectiveSpec& spec, const CallMemory& memory, Arguments arguments = {}) const {
    return start({.num_members = size(), .position = position_}, spec, memory,
                 std::move(arguments));
  }
  // Starts an operation as the member at `place`; a message as the end at `place`.
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
