// SPDX-License-Identifier: Apache-2.0
//
// FakeJob: a job whose clients are threads of one process, with its coordinators in memory.
//
//   FakeJob job({2, 2});                       two clients of two devices
//   job.coordinator(0), job.coordinator(1)     what each client would have connected to
//   job.declare_lost(1, reason)                as missed heartbeats would
//
// It keeps the contracts of job/coordinator/coordinator.h on which the layers above rely; it has no
// network, no heartbeats and no clock of its own. Thread-safe.
#ifndef TESSERA_TESTS_SUPPORT_COORDINATOR_FAKE_COORDINATOR_H_
#define TESSERA_TESTS_SUPPORT_COORDINATOR_FAKE_COORDINATOR_H_

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "job/coordinator/coordinator.h"

namespace tessera::testing {

class FakeJob {
 public:
  // One client for each entry, with that many devices, all on one host.
  explicit FakeJob(absl::Span<const int> devices_by_client);
  ~FakeJob();

  Coordinator& coordinator(int client);
  // Puts a client on another host. Must be called before any client calls members().
  void set_host_id(int client, std::string host_id);
  // Declares the client lost: all others learn of it, once.
  void declare_lost(int client, const Status& reason);
  // Whether the coordinator answers propose(). It does at first.
  void set_answering(bool is_answering);
  // Calls of put(), get() and propose() by all clients.
  int num_calls() const { return num_calls_; }

 private:
  class Client;

  // One instance of a named check-in.
  struct CheckIn {
    std::map<int, std::string> values;  // by client that arrived
    std::vector<int> participants;
    absl::Time deadline = absl::InfiniteFuture();
    bool settled = false;
    Status verdict;
  };

  // Waits until `ready()` or the deadline; returns whether it was ready.
  template <class Ready>
  bool wait_until(std::unique_lock<std::mutex>& lock, absl::Time deadline, Ready ready);
  void settle(CheckIn& check_in, const Status& verdict);

  std::vector<MemberInfo> members_;
  std::vector<std::unique_ptr<Client>> clients_;

  std::atomic<int> num_calls_{0};
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  bool is_answering_ = true;
  std::map<std::pair<std::string, int>, CheckIn> check_ins_;  // by name and number
  std::map<int, Status> lost_;
  std::vector<bool> left_;
};

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_COORDINATOR_FAKE_COORDINATOR_H_
