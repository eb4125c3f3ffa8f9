// SPDX-License-Identifier: Apache-2.0
//
// ClusterCoordinator: the chief of a cluster of workers and parameter servers. It puts variables on
// the parameter servers and schedules functions, by name, on the workers.
//
//   StatusOr<ClusterCoordinator> coordinator = ClusterCoordinator::create(*cluster);
//   StatusOr<RemoteVariable> v = coordinator->variable("v", HostArray::scalar(0.0f));
//   for (int i = 0; i < 100; ++i) coordinator->schedule("step", {*v, HostArray::scalar(i)});
//   Status s = coordinator->join();
//
// A closure is one scheduled call. It runs at least once: after the loss of its worker it runs on
// another worker. Its pushes to variables count exactly once, on all parameter servers or on none.
//
// A per-worker data set has a position on each worker. Only the closures of that worker that count
// move it. So the worker's next closure reads the batches of a lost or failed closure again. A
// closure that runs again on another worker reads from that worker's position.
//
// Errors:
//
// - schedule() does not fail; its RemoteValue does.
// - The first error of a closure cancels all waiting closures; running ones continue.
// - join() and done() return the error once, with the number of other errors. Until then later
//   closures are Cancelled.
// - The loss of a parameter server is such an error. It also fails all later closures.
//
// A task is lost
//   if its process has ended   about a second later
//   if it is silent            when it has not answered for more than three intervals of heartbeats
//                              (CoordinatorOptions::heartbeat_interval): stopped or cut off
// A worker that returns, started again or resumed, gets closures again.
//
// Thread-safe. Movable; a moved-from coordinator can only be assigned and destroyed.
// TF: ParameterServerStrategy and coordinator.ClusterCoordinator in one.
#ifndef TESSERA_SERVERS_CLUSTER_COORDINATOR_H_
#define TESSERA_SERVERS_CLUSTER_COORDINATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/host_array.h"
#include "base/public.h"
#include "base/status.h"
#include "base/wait_report.h"
#include "job/cluster/cluster.h"
#include "servers/function_registry.h"
#include "servers/partitioner.h"
#include "servers/remote_dataset.h"
#include "servers/remote_variable.h"

namespace TESSERA_PUBLIC tessera {
namespace distribute {

namespace internal {
class ValueState;
struct ReportTimes;  // of tests
}  // namespace internal

// The result of a closure. A handle: cheap to copy. It may outlive its coordinator, whose
// destructor cancels closures that are not over.
class RemoteValue {
 public:
  // A move copies: the moved-from handle stays valid.
  RemoteValue(const RemoteValue&) = default;
  RemoteValue& operator=(const RemoteValue&) = default;

  // Blocks until the closure is over and returns its status. DeadlineExceeded after the timeout.
  Status await(absl::Duration timeout = absl::InfiniteDuration()) const;
  // Blocks until the closure is over and returns the tensors of the function. May be called again.
  // join() still reports the error of the closure.
  StatusOr<std::vector<HostArray>> fetch() const;

 private:
  friend class ClusterCoordinator;
  explicit RemoteValue(std::shared_ptr<internal::ValueState> state) : state_(std::move(state)) {}

  std::shared_ptr<internal::ValueState> state_;
};

struct CoordinatorOptions {
  int64_t queue_limit = 256 * 1024;  // of waiting closures; schedule() blocks at the limit
  absl::Duration worker_wait = absl::Hours(1);  // time without any worker after which closures fail
  int max_attempts = 10;  // of a closure; each ends with the loss of its worker
  // From 1 ms to 1 h. Unset: $TESSERA_HEARTBEAT_INTERVAL, or 4 s. A task or a chief that is silent
  // for more than three intervals is lost; the loss of a parameter server loses its variables. The
  // interval must be longer than a busy machine may delay a process.
  std::optional<absl::Duration> heartbeat_interval = {};
  // Receives the reports of long waits instead of stderr.
  //
  // - Calls of a coordinator and of its values wait for tasks without a limit unless they have a
  //   deadline. After 10 s, 30 s, 1, 2 and 5 minutes, and then every 5 minutes, the chief reports
  //   in one line which call waits, which tasks are missing, and which functions have been running
  //   for how long (docs/errors.md, "Long waits").
  // - The report's list of clients is empty, as tasks are not clients.
  // - A thread of the coordinator calls the function. The coordinator's destructor waits for a
  //   running call. The function must not block, throw, or call the coordinator.
  std::function<void(const WaitReport& report)> on_wait = {};
};

class ClusterCoordinator {
 public:
  // Connects to all tasks of the cluster; this process must be its chief. Waits up to a minute for
  // the tasks, or worker_wait if that is shorter.
  //   InvalidArgument     no ps, no worker, two chiefs, not the chief; a partitioner or an option
  //                       below its least value; tasks on several hosts and no $TESSERA_TOKEN
  //   FailedPrecondition  workers with different registries, naming a worker and the name that it
  //                       lacks; a cluster that has a ClusterCoordinator
  //   DeadlineExceeded    names the tasks that did not answer
  static StatusOr<ClusterCoordinator> create(const cluster::Cluster& cluster,
                                             Partitioner partitioner = {},
                                             const CoordinatorOptions& options = {});
  ClusterCoordinator(ClusterCoordinator&& other) noexcept;
  ClusterCoordinator& operator=(ClusterCoordinator&& other) noexcept;
  // Cancels closures that are not over, and ends all servers in order.
  ~ClusterCoordinator();

  int num_workers() const;
  int num_ps() const;

  // Puts a variable on the parameter servers. The shards of all variables are assigned to the
  // servers in turn.
  //
  // - InvalidArgument: an array that is not valid, an empty name, or a shard of more than 1 GiB.
  // - AlreadyExists: the name is in use.
  // - Unavailable: a parameter server is lost.
  StatusOr<RemoteVariable> variable(std::string name, const HostArray& initial);

  // Schedules one call. Blocks only while the queue is full. The returned value is NotFound for a
  // function that the workers do not have. It is InvalidArgument for arguments of more than 1 GiB
  // and for a variable or a data set of another coordinator.
  RemoteValue schedule(absl::string_view function, std::vector<Argument> args = {});

  // Calls a function of FunctionRegistry::add_dataset() on each worker to make a data set, at its
  // start. Each call makes another data set. Waits for running functions. A worker that is away
  // makes the data set with its first closure that reads it. Returns the function's own error, with
  // the worker's name, or
  //   NotFound         a function that the workers do not have
  //   InvalidArgument  a data set without batches; batches of other dtypes or ranks on some worker
  //   Unavailable      no worker was there for worker_wait, or a parameter server is lost
  StatusOr<RemoteDataset> create_per_worker_dataset(absl::string_view dataset_function);

  // Returns whether all closures are over, or the first error since the last report, once.
  StatusOr<bool> done();
  // Waits until all closures are over; fails as done() does. After DeadlineExceeded the closures
  // continue.
  Status join(absl::Duration timeout = absl::InfiniteDuration());
  // Waits for these values and returns them in this order, or the first error among them.
  StatusOr<std::vector<std::vector<HostArray>>> fetch(absl::Span<const RemoteValue> values);

 private:
  class Impl;
  friend struct internal::ReportTimes;
  // `wait_report_unit` replaces 10 s in the times of reports.
  static StatusOr<ClusterCoordinator> create(const cluster::Cluster& cluster,
                                             Partitioner partitioner,
                                             const CoordinatorOptions& options,
                                             absl::Duration wait_report_unit);
  explicit ClusterCoordinator(std::unique_ptr<Impl> impl);
  // Every call of a moved-from coordinator returns this FailedPrecondition.
  Status check_not_moved_from() const;

  std::unique_ptr<Impl> impl_;
};

}  // namespace distribute
}  // namespace tessera

#endif  // TESSERA_SERVERS_CLUSTER_COORDINATOR_H_
