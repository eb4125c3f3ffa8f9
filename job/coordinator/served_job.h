// SPDX-License-Identifier: Apache-2.0
//
// ServedJob: the state of a job (coordinator_state.h) behind a lock, with a timer. It serves the
// messages of the job's clients.
//
//   handle(request, &response, finish)    finish() runs once, when the response is filled in: in
//                                         this call, in another one, or on the timer's thread
//
// A session is a number chosen by the service, the connection of a client. Only requests with the
// number of an open session are served, and one registration of each.
//
// Thread-safe. Answers and losses are delivered without the lock.
#ifndef TESSERA_JOB_COORDINATOR_SERVED_JOB_H_
#define TESSERA_JOB_COORDINATOR_SERVED_JOB_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "base/thread.h"
#include "job/coordinator/coordinator_state.h"
#include "tessera/job/coordinator/coordinator.pb.h"

namespace tessera {

class ServedJob {
 public:
  using Finish = std::function<void()>;
  using Losses = google::protobuf::RepeatedPtrField<rpc::Loss>;

  // `tell` is called for the losses of each event, before the calls that they end are answered.
  ServedJob(CoordinatorState::Options options, std::function<void(const Losses&)> tell);
  Status start_timer();
  // Cancels all waiting calls and all later ones, and returns when they are answered. Needed after
  // start_timer().
  void stop();

  // Notes that sessions begin, and that clients of open sessions live.
  void note_alive(absl::Span<const uint64_t> opened, absl::Span<const uint64_t> alive);
  void sessions_broke(const std::set<uint64_t>& sessions);

  void handle(const rpc::RegisterRequest& request, rpc::RegisterResponse* response,
              const Finish& finish);
  void handle(const rpc::PutRequest& request, rpc::Outcome* response, const Finish& finish);
  void handle(const rpc::GetRequest& request, rpc::GetResponse* response, const Finish& finish);
  void handle(const rpc::ProposeRequest& request, rpc::GetResponse* response, const Finish& finish);
  void handle(const rpc::CheckInRequest& request, rpc::Outcome* response, const Finish& finish);
  void handle(const rpc::LeaveRequest& request, rpc::Outcome* response, const Finish& finish);
  void handle(const rpc::AwaitedRequest& request, rpc::AwaitedAnswer* response,
              const Finish& finish);
  void handle(const rpc::WaitsRequest& request, rpc::WaitsAnswer* response, const Finish& finish);

  // The list of the members, serialized (member_list.h).
  std::shared_ptr<const std::string> members();

 private:
  using Callbacks = std::vector<std::function<void()>>;

  // Calls `change(answers)` with the lock, wakes the timer if something is due earlier now, and
  // answers the affected callers: with the callbacks of the state, then with `answers`.
  template <class Change>
  void change(const Change& change);
  // Runs one call of a client: `body(client, done, answers)` with the lock. `done` writes the
  // answer with `fill_in`, immediately or later, and `finish` sends it. An unknown client and a
  // lost client are refused.
  template <class FillIn, class Body>
  void run(uint64_t session, const FillIn& fill_in, const Finish& finish, const Body& body);
  void run_timer();

  std::mutex mutex_;  // guards the members below
  std::condition_variable timer_changed_;
  CoordinatorState state_;
  absl::Time timer_wakes_ = absl::InfinitePast();
  bool stopping_ = false;
  int num_answering_ = 0;  // threads other than the timer that run callbacks
  std::condition_variable answered_;
  std::unordered_map<uint64_t, bool> registered_;  // by open session, whether it has registered
  std::shared_ptr<const std::string> members_;     // a serialized MemberList
  int job_of_members_ = 0;                         // the num_jobs() of it

  Thread timer_;
};

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_SERVED_JOB_H_
