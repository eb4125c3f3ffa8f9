// SPDX-License-Identifier: Apache-2.0
//
// TaskLinks: the chief's connections to all tasks of its cluster, with sessions and heartbeats.
//
//   a task:    away --hello--> up --silent or gone, or it says that the session is over--+
//               ^                                                                       |
//               +------------------------------- lost ----------------------------------+
//
// One thread keeps the links. At each tick it sends a heartbeat to each task that is up, and greets
// each task that is away. It greets workers once all parameter servers are up.
//
// Invariants:
//   1. A tick is silent if no heartbeat was answered, and broken if a heartbeat found no
//      connection. heartbeats.h says how many make a loss. Ticks are counted, not timed: a pause of
//      this process loses no task.
//   2. The callbacks `up` and `lost` of one task alternate. After `lost` no callback of a call to
//      the lost session is under way. Later calls may be started, and fail.
//
// Thread-safe. Callbacks run on the thread of this class or on a gRPC thread, without locks of this
// class.
#ifndef TESSERA_SERVERS_TASK_LINKS_H_
#define TESSERA_SERVERS_TASK_LINKS_H_

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/thread.h"
#include "job/cluster/cluster.h"
#include "servers/task_client.h"
#include "tessera/servers/parameter_server.pb.h"

namespace tessera::distribute::internal {

class TaskLinks {
 public:
  struct Task {
    std::string job = {};  // "worker" or "ps"
    int index = 0;
    std::string address = {};

    bool is_worker() const { return job == "worker"; }
    std::string to_string() const;  // "worker 1 (host-a:4000)"
  };
  struct Callbacks {
    std::function<uint64_t(const Task&)> new_session;
    std::function<void(const Task&, uint64_t session, const rpc::HelloResponse&)> up;
    std::function<void(const Task&, const Status& why)> lost;
    // The task rejects this chief. It is greeted again.
    std::function<void(const Task&, const Status& why)> refused;
    std::function<void()> tick;
  };

  // Links to the workers and parameter servers of `spec`.
  static StatusOr<std::unique_ptr<TaskLinks>> start(const cluster::ClusterSpec& spec,
                                                    uint64_t chief,
                                                    absl::Duration heartbeat_interval,
                                                    Callbacks callbacks);
  ~TaskLinks() { stop(absl::CancelledError("the chief has ended")); }
  // Tells the tasks that are up that the chief ends, in order if `reason` is OK. Waits up to a
  // second for their answers, then closes all links: no callback runs afterwards. Idempotent.
  void stop(const Status& reason);

  // The tasks that are away, and why, for messages: "worker 1 (host-a:4000): UNAVAILABLE: ...".
  std::vector<std::string> tasks_away() const;
  // The tasks in reports of long waits. Lists tasks_away(), each as "missing worker 1 ...", then
  // tasks that are up and miss heartbeats, as "worker 1 (host-a:4000) has not answered for 2 s".
  std::vector<std::string> describe_missing() const;
  std::vector<TaskAddress> ps_addresses() const;
  // Ends a task for good, with this reason.
  void dismiss(const Task& task, const Status& reason);

  // Calls the task like TaskClient, without a deadline: the call ends with the session.
  template <class Request, class Response>
  void call(absl::string_view job, int index, TaskClient::Method<Request, Response> method,
            const Request& request, std::function<void(const grpc::Status&, Response&)> done) {
    const std::shared_ptr<TaskClient> client = client_of(job, index);
    if (client != nullptr) {
      client->call(method, request, absl::InfiniteFuture(), std::move(done));
      return;
    }
    Response none;
    done({grpc::StatusCode::CANCELLED, "the task is lost"}, none);
  }

 private:
  struct Link {
    Task task;
    std::string token;
    std::shared_ptr<TaskClient> client;
    uint64_t session = 0;
    bool is_up = false;
    bool is_greeting = false;
    bool is_dismissed = false;
    bool is_beating = false;    // a heartbeat is under way
    bool is_attending = false;  // the call Attend is open, which shows the connection
    bool is_answered = false;   // a heartbeat was answered since the last tick
    bool is_broken = false;     // a heartbeat found no connection since the last tick
    int64_t num_silent = 0;     // silent ticks in a row
    int num_broken = 0;         // broken ticks since the last answer
    Status why_over;            // the task's own reason that the session is over
    Status why_away = absl::UnavailableError("it was not reached yet");
  };

  TaskLinks(uint64_t chief, absl::Duration interval, Callbacks callbacks);
  void run();
  void keep(size_t link);
  // Counts a tick. Returns an error if the task, which is up, is lost. Requires the lock.
  Status count_tick(Link* link);
  void beat(size_t link);
  void attend(size_t link);
  void greet(size_t link);
  void greeted(size_t link, uint64_t session, const grpc::Status& status,
               const rpc::HelloResponse& response);
  void lose(size_t link, const Status& why);
  std::shared_ptr<TaskClient> client_of(absl::string_view job, int index) const;
  bool all_ps_are_up() const;  // requires the lock
  void say_goodbye(const Status& reason);

  const uint64_t chief_;
  const std::string chief_name_;
  const absl::Duration interval_;
  const Callbacks callbacks_;
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::vector<Link> links_;
  bool is_stopping_ = false;
  Thread thread_;
};

}  // namespace tessera::distribute::internal

#endif  // TESSERA_SERVERS_TASK_LINKS_H_
