// SPDX-License-Identifier: Apache-2.0
//
// KeyValues: the values of a job by key, its proposals (proposals.h), and the calls that wait for a
// value or a proposal.
//
//   client 0   get("k", setter 1)   waits  --+
//   client 1   put("k", "v")                 +--> "v"
//
// Invariants:
//   1. a key keeps its first value;
//   2. a get is answered once: with the value, when the client that would set it is gone, at its
//      deadline, or at stop();
//   3. memory is bounded: kMostBytes of keys and values, Proposals::kMostBytes of proposals,
//      kMostWaitingCalls gets of each client.
//
// A call takes O(log n). Not thread-safe.
#ifndef TESSERA_JOB_COORDINATOR_KEY_VALUES_H_
#define TESSERA_JOB_COORDINATOR_KEY_VALUES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "job/coordinator/coordinator.h"
#include "job/coordinator/deadline_queue.h"
#include "job/coordinator/proposals.h"

namespace tessera {

class KeyValues {
 public:
  using Found = std::function<void(const StatusOr<std::string>&)>;

  static constexpr int64_t kMostBytes = 64 << 20;  // of all keys and values together
  static constexpr size_t kMostProposalBytes = 64 << 10;
  static constexpr int kMostWaitingCalls = 1024;  // per client

  // `describe` names a client in messages. Answers are appended to `callbacks`.
  KeyValues(int num_clients, std::function<std::string(int)> describe, DeadlineQueue& deadlines,
            std::vector<std::function<void()>>& callbacks);
  KeyValues(const KeyValues&) = delete;
  KeyValues& operator=(const KeyValues&) = delete;

  // Stores the value. ResourceExhausted beyond kMostBytes.
  Status put(absl::string_view key, absl::string_view value);
  // Unavailable where `setter` is gone before it set the key.
  void get(int client, absl::string_view key, int setter, absl::Time deadline, Found found);
  // The first value of the number. InvalidArgument where it is too long.
  StatusOr<std::string> propose(absl::string_view series, uint32_t number, absl::string_view value);
  // As get(); NotFound where the proposal is forgotten.
  void get_proposal(int client, absl::string_view series, uint32_t number, int setter,
                    absl::Time deadline, Found found);

  // Removes the client as a setter: gets of keys that it would set fail with the reason. The first
  // reason of a client stays.
  void client_gone(int client, const Status& reason);
  // Fails all waiting calls, and all later ones.
  void stop(const Status& reason);

  // The bytes of all keys, values and proposals.
  int64_t num_bytes() const { return value_bytes_ + proposals_.num_bytes(); }
  // The waiting gets of this client.
  std::vector<AwaitedCall> awaited(int client) const;

 private:
  struct Waiter {
    int client;
    int setter;
    std::string key;
    Found found;
    DeadlineQueue::Handle expiry;
  };

  void answer(const Found& found, const StatusOr<std::string>& value);
  // Answers the callers that wait for the key.
  void wake_waiters(const std::string& key, absl::string_view value);
  // Registers a get that has no answer yet.
  void wait_for(int client, const std::string& key, int setter, absl::Time deadline, Found found);
  void finish(uint64_t number, const StatusOr<std::string>& value);

  const std::function<std::string(int)> describe_;
  DeadlineQueue& deadlines_;
  std::vector<std::function<void()>>& callbacks_;

  std::map<std::string, std::string> values_;
  int64_t value_bytes_ = 0;
  Proposals proposals_;
  std::map<uint64_t, Waiter> waiters_;
  std::map<std::string, std::set<uint64_t>> waiters_of_;  // by key
  uint64_t last_waiter_ = 0;
  std::vector<int> num_waiting_;                // by client
  std::vector<std::set<uint64_t>> awaited_by_;  // by client, the waiters for keys it is to set
  std::map<int, Status> gone_;                  // by client
  Status stopped_;                              // the result of calls after stop()
};

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_KEY_VALUES_H_
