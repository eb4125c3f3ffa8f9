// SPDX-License-Identifier: Apache-2.0
#include "collectives/group.h"

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

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

std::string Group::to_string() const {
  const absl::Span<const int> ids = device_ids();
  if (ids.empty()) return "group that was moved from";
  std::string text = ids.size() == 1 ? "group of device " : "group of devices ";
  for (size_t first = 0; first < ids.size();) {
    size_t last = first;  // of a run of consecutive ids, which is worth a dash from three on
    while (last + 1 < ids.size() && ids[last + 1] == ids[last] + 1) ++last;
    if (last < first + 2) last = first;
    absl::StrAppend(&text, first == 0 ? "" : ", ", ids[first]);
    if (last > first) absl::StrAppend(&text, "-", ids[last]);
    first = last + 1;
  }
  return absl::StrCat(text, ", as device ", ids[position_]);
}

Work Group::start(GroupBackend::Fill fill) const {
  if (backend_ == nullptr) return moved_from_work();
  return backend_->start(position_, [&](CollectiveCall& call) {
    fill(call);
    prepare(call, {size(), position_});
  });
}

void Group::prepare(CollectiveCall& call, GroupPlace place) const {
  if (call.collective == nullptr) call.collective = prepared_->find(call, place);
  const bool is_new = call.collective == nullptr;
  validate(call, place);
  if (is_new && call.error.ok()) prepared_->keep(call);
}

Work Group::start_send(int to, CollectiveCall call) const {
  if (backend_ == nullptr) return moved_from_work();
  prepare(call, {.num_members = 2, .position = 0});
  return backend_->start_send(position_, to, std::move(call));
}

Work Group::start_recv(int from, CollectiveCall call) const {
  if (backend_ == nullptr) return moved_from_work();
  prepare(call, {.num_members = 2, .position = 1});
  return backend_->start_recv(position_, from, std::move(call));
}

Work Group::barrier() const {
  return start([](CollectiveCall&) {});
}

}  // namespace tessera
