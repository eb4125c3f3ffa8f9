// SPDX-License-Identifier: Apache-2.0
//
// HostBackend: collectives among the devices of one host, in memory that all of them map.
//
// Each member's call runs on its device's stream (collective_runs.h). It publishes the place of its
// memory, waits for the others, moves bytes directly between the members' memory, and publishes
// that it is done. It then waits for the others if they still use its memory. No byte passes
// through a socket, and one code path serves devices of one process and of several.
//
//   op               reads a member        writes a member        (P members, S bytes of the count)
//   all_reduce       S (S/P of P inputs)   S (S/P to P outputs)
//   reduce           S                     S/P
//   reduce_scatter   S (S/P of P inputs)   S/P
//   all_gather       S                     S
//   all_to_all       S                     S
//   broadcast        S                     S                      the root copies to its own out
//   gather, scatter  S at the root or S/P each
//
// Memory in the client's arenas is used in place. Other memory is used in place too where all
// members belong to one client, and copied through an arena where they do not.
//
// Threads. Any thread may call the functions, except stop() and the destructor: one thread calls
// these when the client shuts down. on_lost() runs on the thread that reports a loss, and
// reclaim_lent() on a thread that allocates memory when the pool has no free block.
#ifndef TESSERA_COLLECTIVES_HOST_HOST_BACKEND_H_
#define TESSERA_COLLECTIVES_HOST_HOST_BACKEND_H_

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "collectives/group_backend.h"
#include "collectives/host/device_mover.h"
#include "collectives/host/host_group.h"
#include "collectives/host/host_resources.h"
#include "collectives/host/rendezvous.h"
#include "device/cpu/arena.h"
#include "device/device.h"
#include "device/stream.h"
#include "shm/host_link.h"

namespace tessera::host {

// Makes a group with members on several hosts, at least one of which is a device of this client.
// For messages: the group of the messages from the first of two members to the second.
using MakeSpan = std::function<StatusOr<std::shared_ptr<HostGroup>>(
    HostResources& resources, std::vector<shm::GroupMember> members, bool is_for_messages)>;

class HostBackend {
 public:
  // `devices` are the devices of the job by id; `streams` are the streams of this client's devices
  // by ordinal. `link` and the streams must outlive the backend; call stop() before it is
  // destroyed. `make_mover`: for devices whose memory is not the host's. `make_span`: for groups
  // with members on several hosts; needed if there are any.
  HostBackend(shm::HostLink& link, std::shared_ptr<ArenaPool> pool, std::vector<Device> devices,
              std::vector<Stream*> streams, absl::Duration collective_timeout,
              MakeDeviceMover make_mover = nullptr, MakeSpan make_span = nullptr);
  ~HostBackend();

  // See HostResources.
  Status check_process() const { return resources_.check_process(); }
  Status check_may_wait(absl::string_view call) const { return resources_.check_may_wait(call); }

  // See HostResources.
  void set_wait_reports(WaitReports* reports, HostResources::DescribeClient describe) {
    resources_.set_wait_reports(reports, std::move(describe));
  }

  // Blocks until the other clients have read the inputs that finished operations have lent to them,
  // or are lost; no longer than a collective may take.
  void wait_until_read();

  // Ends the threads of the backend; its groups stay valid. The streams must be stopped already.
  void stop();

  // The group of these devices; calls with the same list share one. Local: no communication.
  // - InvalidArgument for an empty list, and for an unknown or repeated device.
  // - The loss of a member's client is no error here; it is the error of each run of the group. A
  //   client without a group would start nothing, and members of other groups of the same call
  //   would wait for it.
  // - A group without users is kept for the next call, as long as there are few of them.
  StatusOr<std::shared_ptr<GroupBackend>> group(absl::Span<const int> device_ids);

  // Groups that are kept, in use or not.
  int num_groups() const;
  // The bytes that these groups take, mostly of control regions.
  uint64_t num_group_bytes() const;
  // Forgets unused groups. A group counts as unused if its operations are done here and the others
  // have read their inputs.
  void forget_unused_groups();

 private:
  // Finds a list of devices without a copy of it.
  struct ByIds {
    using is_transparent = void;
    bool operator()(absl::Span<const int> a, absl::Span<const int> b) const { return a < b; }
  };
  // A group in groups_, by its salt and the list of its devices there.
  struct GroupName {
    uint64_t salt;
    const std::vector<int>* device_ids;
  };
  struct Known {
    std::shared_ptr<HostGroup> group;
    uint64_t num_bytes;                  // bytes that it takes, of the control region above all
    std::list<GroupName>::iterator use;  // its place in by_use_
  };
  using Groups = std::map<std::vector<int>, Known, ByIds>;

  Status validate_devices(absl::Span<const int> device_ids) const;
  // The group, if it is known. Requires mutex_.
  std::shared_ptr<HostGroup> find_group(absl::Span<const int> device_ids, uint64_t salt);
  // The functions below require making_mutex_, and not mutex_: a group table may be locked by a
  // client that is stopped.
  StatusOr<std::shared_ptr<HostGroup>> make_group(std::vector<int> device_ids, uint64_t salt,
                                                  uint32_t num_records);
  // The protocol of these members, and what its records take of a control region.
  StatusOr<std::shared_ptr<HostGroup>> make_runs(std::vector<shm::GroupMember> members,
                                                 uint64_t salt, uint32_t num_records,
                                                 uint64_t& num_bytes);
  StatusOr<Rendezvous> open_rendezvous(const std::vector<shm::GroupMember>& members, uint64_t salt,
                                       uint32_t num_records);
  // forget_unused() looks at this many groups for each group that is made, so that unused groups
  // are found soon. Groups in use are skipped once per round.
  static constexpr size_t kLooksPerGroup = 2;
  enum class Forget { kAboveBudget, kAllUnused };
  // Forgets unused groups, the least recently requested first.
  void forget_unused(Forget which);
  void on_lost(int client, const Status& reason);
  void tell_of_losses(HostGroup& group) const;
  // The functions below are called without mutex_, because the memory of an operation may be
  // destroyed by code of the user.
  //
  // The groups whose operations may lend their inputs.
  std::vector<std::shared_ptr<HostGroup>> lenders() const;
  // Releases the inputs that the others have read; returns the number of inputs that are still to
  // be read. An allocation does not wait for these, since it may hold the turn, and has no
  // deadline. A member lends the inputs of at most two operations of a group: it meets the others
  // in an operation only when all have read the inputs of the previous one.
  int reclaim_lent();
  // Finds or makes a group. If there is no room for it, frees the memory that unused groups keep.
  StatusOr<std::shared_ptr<HostGroup>> find_or_make(absl::Span<const int> device_ids, uint64_t salt,
                                                    uint32_t num_records);
  // Releases the inputs and outputs kept for other members by the groups that forget_unused(which)
  // looks at next: an operation in their lists refers to its group.
  void reap_groups(Forget which);

  HostResources resources_;
  const MakeDeviceMover make_mover_;
  const MakeSpan make_span_;

  // Groups above this limit are forgotten when they have no users.
  const uint64_t budget_bytes_;

  std::mutex making_mutex_;  // one group is made at a time; before mutex_ where both are
  // Guards the members below. on_lost() takes it: its holder waits for no other client.
  mutable std::mutex mutex_;
  Groups groups_[2];             // by salt
  std::list<GroupName> by_use_;  // all of them, the one last asked for first
  uint64_t known_bytes_ = 0;     // of all of them
  bool stopped_ = false;
};

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_HOST_BACKEND_H_
