// SPDX-License-Identifier: Apache-2.0
//
// OtherHosts: the messages between the hosts of one group of GPUs about NCCL. Members of one host
// use shared memory (generations.h). Between hosts there are
//
//   the unique id of a generation     proposed to the coordinator by the client of the group's
//                                     first member
//   the verdict on a generation       the first that any host proposes there stands; a letter tells
//                                     the other hosts at once
//   whether members have memory       one answer per host, there too
//
// NCCL moves the bytes of tensors: between hosts it uses its own network.
//
// Thread-safe.
#ifndef TESSERA_COLLECTIVES_NCCL_OTHER_HOSTS_H_
#define TESSERA_COLLECTIVES_NCCL_OTHER_HOSTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "collectives/nccl/api.h"
#include "collectives/span/network.h"
#include "collectives/span/verdicts.h"
#include "shm/group_table.h"

namespace tessera::nccl {

class OtherHosts {
 public:
  // `members`: of all hosts, in the order of the group.
  OtherHosts(std::shared_ptr<span::Network> network, const std::vector<shm::GroupMember>& members);
  ~OtherHosts();

  // A name of the group that is unique on its hosts, for the data that they store about it.
  uint64_t name() const { return name_; }
  int num_members() const { return num_members_; }

  // The id of a generation. It is the result of `make` where this client has the group's first
  // member, else the id that the first member's client has published. Blocks until the deadline;
  // Unavailable where that client is lost.
  StatusOr<UniqueId> share_id(uint32_t generation, absl::FunctionRef<StatusOr<UniqueId>()> make,
                              absl::Time deadline) const;
  // How long to wait for the coordinator to say which verdict was first: it is asked at deadlines.
  static constexpr absl::Duration kVerdictLimit = absl::Milliseconds(750);
  // The verdict on a generation: `error`, unless another host has proposed one, or the coordinator
  // does not answer by `limit`. Tells the others.
  Status propose(uint32_t generation, const Status& error, absl::Time limit) const;
  // From the first call on the reader is called with the verdicts that other hosts send, earlier
  // verdicts included, by a thread that must not wait.
  using Reader = std::function<void(uint32_t generation, const Status& verdict)>;
  void start_reading(const Reader& reader);
  // The first error of the hosts, in the order of their first members, the same on all of them;
  // `own` is this host's. Called by every member of the group in operation `seq`. Blocks until all
  // hosts have answered, or the deadline.
  Status first_error(uint32_t seq, const Status& own, absl::Time deadline) const;

 private:
  // The name of a series of values at the coordinator (Coordinator::propose()).
  std::string series(absl::string_view what) const;

  const std::shared_ptr<span::Network> network_;
  const uint64_t name_;
  const int num_members_;
  const span::Verdicts verdicts_;
  std::vector<int> first_clients_;  // of each host, in the order of the group
  std::vector<int> far_clients_;    // of other hosts
  int own_first_client_ = 0;        // of this host
  std::mutex mutex_;                // guards reads_
  bool reads_ = false;
};

}  // namespace tessera::nccl

#endif  // TESSERA_COLLECTIVES_NCCL_OTHER_HOSTS_H_
