// SPDX-License-Identifier: Apache-2.0
//
// WorkerRunner: runs the functions of one worker and makes its data sets, one at a time, on its own
// thread.
//
// Invariants:
//   1. A run is answered when its function has returned and all its pushes are staged. A repeated
//      request does not run the function again; it gets the same answer.
//   2. A session begins only when no function of an earlier session is running: a function occupies
//      its worker until it returns, given up or not.
//
// Thread-safe.
#ifndef TESSERA_SERVERS_WORKER_RUNNER_H_
#define TESSERA_SERVERS_WORKER_RUNNER_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/thread.h"
#include "mesh/mesh.h"
#include "servers/function_registry.h"
#include "servers/parameter_servers.h"
#include "servers/worker_datasets.h"
#include "tessera/servers/parameter_server.pb.h"

namespace tessera::distribute::internal {

class WorkerRunner : public std::enable_shared_from_this<WorkerRunner> {
 public:
  // Answers one request: fills in the response and sends it.
  using Answer = std::function<void(const rpc::RunResponse&)>;
  using DatasetAnswer = std::function<void(const rpc::MakeDatasetResponse&)>;

  static StatusOr<std::shared_ptr<WorkerRunner>> start(int worker, Mesh mesh,
                                                       FunctionRegistry functions);

  const FunctionRegistry& functions() const { return functions_; }

  // Unavailable, naming the function, while a function of an earlier session is running.
  Status begin_session(uint64_t chief, uint64_t session,
                       const std::vector<ParameterServers::Address>& servers);
  void run(const rpc::RunRequest& request, Answer answer);
  // Waits for the running function.
  void make_dataset(const rpc::MakeDatasetRequest& request, DatasetAnswer answer);
  // Answers the waiting requests, and ends the thread once no function runs. DeadlineExceeded,
  // naming the function, if a function runs at the deadline; the thread ends when it returns.
  Status stop(absl::Time deadline);

 private:
  struct Making {
    rpc::MakeDatasetRequest request;
    DatasetAnswer answer;
  };
  // The requests that wait for an answer when a session ends.
  struct Waiting {
    std::vector<Answer> runs;
    std::vector<Making> makings;

    void give_up(absl::string_view why) const;
  };

  WorkerRunner(int worker, Mesh mesh, FunctionRegistry functions)
      : worker_(worker),
        mesh_(std::move(mesh)),
        functions_(std::move(functions)),
        datasets_(worker_, mesh_, functions_) {}

  Waiting take_waiting();  // requires the lock
  void serve();
  void serve_dataset(std::unique_lock<std::mutex>& lock);
  void serve_run(std::unique_lock<std::mutex>& lock);
  rpc::RunResponse run_function(const rpc::RunRequest& request, ParameterServers& servers);
  Status call(const rpc::RunRequest& request, ParameterServers& servers,
              rpc::RunResponse* response);

  const int worker_;
  const Mesh mesh_;
  const FunctionRegistry functions_;
  WorkerDatasets datasets_;  // used by the thread only
  std::mutex stop_mutex_;    // held by stop(); taken before mutex_
  Thread thread_;            // guarded by stop_mutex_ once it has started
  std::mutex mutex_;         // guards the members below
  std::condition_variable changed_;
  std::shared_ptr<ParameterServers> servers_;  // the session's
  uint64_t session_ = 0;
  uint64_t last_run_ = 0;                   // the session's
  std::optional<rpc::RunRequest> request_;  // the thread's next run
  std::deque<Making> makings_;              // the session's
  std::string running_;                     // the running "function "f""; empty: none
  std::optional<rpc::RunResponse> answer_;  // the answer to last_run_, once it is over
  std::vector<Answer> waiting_;             // requests that wait for answer_
  bool is_stopping_ = false;
  bool has_ended_ = false;  // the thread has ended
};

}  // namespace tessera::distribute::internal

#endif  // TESSERA_SERVERS_WORKER_RUNNER_H_
