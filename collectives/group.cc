// SPDX-License-Identifier: Apache-2.0
#include "collectives/group.h"

#include <memory>
#include <utility>

#include "absl/time/time.h"

namespace tessera {
namespace {

// What a group that was moved from starts: nothing, which fails.
class MovedFromWork final : public PendingWork {
 public:
  bool done() const override { return true; }
  Status wait_until(absl::Time) override {
    return absl::FailedPreconditionError(
        "the group was moved from; use the Group that it was moved to");
  }
};

Work moved_from_work() { return Work(std::make_shared<MovedFromWork>()); }

}  // namespace

Work Group::start(GroupBackend::Fill fill) const {
  if (backend_ == nullptr) return moved_from_work();
  return backend_->start(position_, [&](CollectiveCall& call) {
    fill(call);
    validate(call, size(), position_);
  });
}

Work Group::start_send(int to, CollectiveCall call) const {
  if (backend_ == nullptr) return moved_from_work();
  return backend_->start_send(position_, to, std::move(call));
}

Work Group::start_recv(int from, CollectiveCall call) const {
  if (backend_ == nullptr) return moved_from_work();
  return backend_->start_recv(position_, from, std::move(call));
}

Work Group::barrier() const {
  return start([](CollectiveCall&) {});
}

}  // namespace tessera
