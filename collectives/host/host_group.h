// SPDX-License-Identifier: Apache-2.0
//
// HostGroup: one group of devices, from the view of one client. There is a subclass per protocol:
// CollectiveRuns, MessageRuns, LoneRuns for operations that meet no other member, and
// span::SpanRuns for groups with members on several hosts.
//
//   open --close()--> closing: runs fail --forget_runs()--> forgotten: no caller is inside
//
// Threads: start() and Run::wait_until() are called by threads of the user, each counted by a
// Caller; on_lost() by the thread that reports a loss; close() and forget_runs() by the thread that
// shuts the client down, in this order.
//
// Invariants:
//   1. after close() every run ends, so that the streams and the callers do;
//   2. after forget_runs() nothing accesses the memory that clients share, and operations that
//      begin later get too_late().
#ifndef TESSERA_COLLECTIVES_HOST_HOST_GROUP_H_
#define TESSERA_COLLECTIVES_HOST_HOST_GROUP_H_

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "collectives/arguments.h"
#include "collectives/collective.h"
#include "collectives/group_backend.h"
#include "collectives/host/device_mover.h"
#include "collectives/host/host_resources.h"
#include "shm/group_table.h"

namespace tessera::host {

// The error of a run that begins after HostGroup::close().
Status too_late();

class HostGroup : public GroupBackend, public std::enable_shared_from_this<HostGroup> {
 public:
  // `members`: the members on this host. `all_members`: also the members on other hosts, where
  // there are any.
  HostGroup(HostResources& resources, std::vector<shm::GroupMember> members,
            std::unique_ptr<DeviceMover> device_mover,
            std::vector<shm::GroupMember> all_members = {});

  absl::Span<const int> device_ids() const override { return device_ids_; }

  // The backend calls the functions below.
  //
  // Releases the runs whose memory no other member accesses any more; these runs keep the group.
  // Any thread may call it, also after forget_runs().
  virtual void reap() {}
  // Blocks until the others have read the inputs that this client has lent them, are lost, or the
  // deadline passes. Inputs that were read are released then.
  virtual void wait_until_read(absl::Time /*deadline*/) {}
  // The number of inputs of operations that are done here and that other clients still read.
  virtual int num_lent() const { return 0; }
  // Ends the pending runs if `client` is a member's client.
  void on_lost(int client, const Status& reason);
  // Fails all waiting and later runs: the client shuts down.
  void close();
  // Ends every run, and frees the group's part of the memory that clients share. Requires that
  // close() was called and no stream of this client runs.
  void forget_runs();

  // Used by runs and protocols.
  HostResources& resources() const { return resources_; }
  // The members on this host. A run identifies a member by its index among them.
  const std::vector<shm::GroupMember>& members() const { return members_; }
  int size() const { return static_cast<int>(members_.size()); }
  // The members of all hosts, by position in the group.
  const std::vector<shm::GroupMember>& all_members() const {
    return all_members_.empty() ? members_ : all_members_;
  }
  bool spans_hosts() const { return !all_members_.empty(); }
  bool spans_clients() const { return spans_clients_; }
  bool is_local(int member) const;
  // Null where the memory of the group is the host's.
  DeviceMover* device_mover() const { return device_mover_.get(); }
  Stream& stream(int member) const { return resources_.stream(members_[member].ordinal); }
  shm::DeviceActivity& activity(int member) const {
    return resources_.link().own_control().activity(members_[member].ordinal);
  }
  bool is_closing() const { return closing_; }
  // A cheap test: if false, interruption() is OK.
  bool may_be_interrupted() const { return closing_ || resources_.link().liveness().any_lost(); }
  // Why no run of the group can go on: the client shuts down, or a member is lost.
  Status interruption() const;
  // The loss of a member's client that this client knows of.
  Status lost_member() const;
  // The name of a run in messages.
  std::string label_of(const Collective& collective, const Arguments& arguments) const;
  // Describes why a queued run has not begun, while its device has the activity `device`.
  std::string describe_holdup(int member, shm::DeviceActivity::Kind device) const;
  // Makes the output of a run ready. Before that it tells the launcher of a loss, which then knows
  // that later actions of this client are a consequence of the loss, whichever way the loss was
  // noticed.
  void complete_output(const Arguments& arguments, const Status& status) const;

  // Counts a user's thread inside the group: forget_runs() waits until it has left. After
  // forget_runs() the thread must leave at once (is_too_late()).
  class Caller {
   public:
    Caller(HostGroup& group, int member);
    ~Caller() { count_.fetch_sub(1, std::memory_order_release); }
    Caller(const Caller&) = delete;
    Caller& operator=(const Caller&) = delete;
    bool is_too_late() const { return is_too_late_; }

   private:
    std::atomic<int>& count_;
    bool is_too_late_;
  };

 protected:
  // Starts one end of a message between two members, in the group for these messages.
  Work start_message(Collective::Ptr collective, Arguments arguments);
  // The Work of a run that is not started because of `error`. Accesses nothing but its output.
  Work failed(const Arguments& arguments, const Status& error) const;
  // OK, or why the caller cannot start a run.
  Status check_start(const Caller& caller, const Collective& collective,
                     const Arguments& arguments) const;

 private:
  // Ends the operations at which this client's members have arrived.
  virtual void fail_pending(const Status& /*reason*/) {}
  // See forget_runs(); no caller is inside any more.
  virtual void forget() {}

  HostResources& resources_;
  const std::vector<shm::GroupMember> members_;
  const std::vector<shm::GroupMember> all_members_;  // empty: the same
  std::vector<int> device_ids_;                      // of all
  bool spans_clients_ = false;
  const std::unique_ptr<DeviceMover> device_mover_;
  std::atomic<bool> closing_{false};
  std::atomic<bool> forgotten_{false};  // no thread may enter any more
  struct alignas(64) Callers {
    std::atomic<int> count{0};
  };
  std::vector<Callers> callers_;  // by member
};

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_HOST_GROUP_H_
