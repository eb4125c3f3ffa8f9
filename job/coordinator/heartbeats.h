// SPDX-License-Identifier: Apache-2.0
//
// Heartbeats: counts the intervals for which each member of a complete job has been silent, and
// knows the members that are gone.
//
// Invariants:
//   1. heartbeats are counted, not timed. tick() runs once per interval; a client is lost when it
//      has been silent for more than kMissedHeartbeats ticks;
//   2. the clients of a host are one loss if the host is another one than the service's and they
//      are several and silent since the same interval: its network has failed, or its power;
//   3. a client that is gone is expected to send nothing, and is in no loss.
//
// A heartbeat takes O(1). Not thread-safe.
#ifndef TESSERA_JOB_COORDINATOR_HEARTBEATS_H_
#define TESSERA_JOB_COORDINATOR_HEARTBEATS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "job/coordinator/coordinator.h"
#include "job/coordinator/id_ranges.h"

namespace tessera {

class Heartbeats {
 public:
  // By id, and MemberInfo::host_id of the service. The members outlive the object.
  Heartbeats(const std::vector<MemberInfo>& members, std::string host_id);

  void heard(int client) { clients_[client].num_silent_ticks = 0; }
  // Notes that the client is lost or has left. Idempotent.
  void client_gone(int client);
  // An interval has passed. Calls `lose` for each loss, which calls client_gone() for its clients.
  void tick(absl::Duration interval,
            absl::FunctionRef<void(const IdRanges& clients, const Status& reason)> lose);

  bool is_gone(int client) const { return clients_[client].is_gone; }
  int num_gone() const { return num_gone_; }
  std::vector<int> not_gone() const;
  // Whether the client has missed heartbeats. The latest heartbeat may be under way, so one missing
  // heartbeat means nothing.
  bool is_silent(int client) const { return clients_[client].num_silent_ticks >= 2; }

 private:
  struct Client {
    int num_silent_ticks = 0;
    bool is_gone = false;
  };

  // The clients of this client's host that are not gone, if it cannot be reached; else empty.
  IdRanges find_unreachable_host(int client) const;

  const std::vector<MemberInfo>& members_;
  const std::string host_id_;
  std::vector<Client> clients_;               // by id
  std::vector<int> host_of_;                  // by client
  std::vector<std::vector<int>> clients_of_;  // by host
  int num_gone_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_HEARTBEATS_H_
