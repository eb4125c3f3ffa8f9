// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/host_group.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/pending_work.h"
#include "job/launcher/status_channel.h"

namespace tessera::host {
namespace {

// A run that has ended before it began.
class EndedRun final : public internal::PendingWork {
 public:
  explicit EndedRun(Status status) : status_(std::move(status)) {}
  bool done() const override { return true; }
  Status wait_until(absl::Time) override { return status_; }

 private:
  const Status status_;
};

}  // namespace

HostGroup::HostGroup(HostResources& resources, std::vector<shm::GroupMember> members,
                     std::unique_ptr<DeviceMover> device_mover,
                     std::vector<shm::GroupMember> all_members)
    : resources_(resources),
      members_(std::move(members)),
      all_members_(std::move(all_members)),
      spans_clients_(shm::are_of_several_clients(this->all_members())),
      device_mover_(std::move(device_mover)),
      callers_(members_.size()) {
  for (const shm::GroupMember& member : this->all_members())
    device_ids_.push_back(member.device_id);
}

HostGroup::Caller::Caller(HostGroup& group, int member) : count_(group.callers_[member].count) {
  // Counted before the test: either this thread sees forgotten_, or forget_runs() sees the count.
  count_.fetch_add(1, std::memory_order_seq_cst);
  is_too_late_ = group.forgotten_.load(std::memory_order_seq_cst);
}

Status too_late() { return absl::CancelledError("the client is shutting down"); }

bool HostGroup::is_local(int member) const {
  return members_[member].client_id == resources_.link().members().client_id();
}

Status HostGroup::lost_member() const {
  if (!resources_.link().liveness().any_lost()) return absl::OkStatus();
  for (const shm::GroupMember& member : all_members()) {
    TESSERA_RETURN_IF_ERROR(resources_.link().liveness().client_status(member.client_id));
  }
  return absl::OkStatus();
}

Status HostGroup::interruption() const { return closing_ ? too_late() : lost_member(); }

std::string HostGroup::label_of(const Collective& collective, const Arguments& arguments) const {
  if (!arguments.label.empty()) return arguments.label.to_string();
  const Signature& agreed = collective.signature();
  return default_label(agreed.kind, agreed.dtype, agreed.reduction, agreed.count, device_ids_);
}

Status HostGroup::check_start(const Caller& caller, const Collective& collective,
                              const Arguments& arguments) const {
  if (caller.is_too_late()) return with_context(too_late(), label_of(collective, arguments));
  return resources_.check_process();
}

std::string HostGroup::describe_holdup(int member, shm::DeviceActivity::Kind device) const {
  const int id = members_[member].device_id;
  const bool is_idle =
      device == shm::DeviceActivity::kNothing || device == shm::DeviceActivity::kFinished;
  return absl::StrCat("device ", id, is_idle ? " had not begun it" : " is busy with earlier work");
}

void HostGroup::complete_output(const Arguments& arguments, const Status& status) const {
  if (absl::IsUnavailable(status)) report_fatal_status(status);
  if (arguments.out_buffer == nullptr) return;
  if (device_mover_ != nullptr) arguments.out_buffer->mutable_issued().set(status);
  arguments.out_buffer->mutable_ready().set(status);
}

Work HostGroup::failed(const Arguments& arguments, const Status& error) const {
  complete_output(arguments, error);
  return internal::make_work(std::make_shared<EndedRun>(error));
}

Work HostGroup::start_message(Collective::Ptr collective, Arguments arguments) {
  const MessageEnds ends = collective->ends();
  const bool sends = collective->place().position == 0;
  const int member = sends ? ends.sender : ends.receiver;
  const int peer = sends ? ends.receiver : ends.sender;
  const int num_members = static_cast<int>(device_ids_.size());
  const Status process = resources_.check_process();
  if (!process.ok()) return failed(arguments, process);
  StatusOr<std::shared_ptr<GroupBackend>> group = absl::InvalidArgumentError(
      absl::StrCat("member ", member, " cannot ", sends ? "send to" : "receive from", " member ",
                   peer, "; name another member, 0 to ", num_members - 1));
  if (peer >= 0 && peer < num_members && peer != member) {
    group = resources_.messages(device_ids_[ends.sender], device_ids_[ends.receiver]);
  }
  if (!group.ok()) {
    return failed(arguments, with_context(group.status(), label_of(*collective, arguments)));
  }
  return (*group)->start(std::move(collective), std::move(arguments));
}

void HostGroup::on_lost(int client, const Status& reason) {
  const bool concerned =
      std::any_of(all_members().begin(), all_members().end(),
                  [&](const shm::GroupMember& member) { return member.client_id == client; });
  if (!concerned) return;
  fail_pending(reason);
  if (device_mover_ != nullptr) device_mover_->lose(reason);
}

void HostGroup::close() {
  closing_ = true;
  fail_pending(too_late());
  if (device_mover_ != nullptr) device_mover_->close(too_late());
}

void HostGroup::forget_runs() {
  forgotten_.store(true, std::memory_order_seq_cst);
  // Pairs with Caller. The operation that a caller waits for has ended, or close() ends it.
  for (Callers& callers : callers_) {
    while (callers.count.load(std::memory_order_acquire) > 0) sched_yield();
  }
  forget();
}

}  // namespace tessera::host
