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
// another. Its pushes to variables count exactly once, on all parameter servers or on none.
//
// A per-worker data set has a position on each worker. It moves with the closures of that worker
// that count: the batches of a closure that was lost or has failed are read again by the worker's
// next closure; a closure that runs again on another worker reads from that worker's position.
//
// Errors. schedule() does not fail; its RemoteValue does. The first error of a closure cancels all
// waiting closures, while running ones go on. join() and done() return it once, with the number of
// others; until then later closures are Cancelled. The loss of a parameter server is such an error,
// and fails all later closures too.
//
// Losses. A task is lost
//   ended    about a second after its process has ended
//   silent   when it has answered nothing for more than three intervals of heartbeats
//            (CoordinatorOptions::heartbeat_interval): it is stopped or cut off
// A worker that is back, started again or awake, gets closures again.
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
#include "base/status.h"
#include "base/wait_report.h"
#include "job/cluster/cluster.h"
#include "servers/function_registry.h"
#include "servers/partitioner.h"
#include "servers/remote_dataset.h"
#include "servers/remote_variable.h"

namespace tessera::distribute {

namespace internal {
class ValueState;
struct ReportTimes;  // of tests
}  // namespace internal

// The result of a closure. A handle: cheap to copy; it may outlive its coordinator, whose end makes
// it Cancelled.
class RemoteValue {
 public:
  // A move copies: the moved-from handle stays valid.
  RemoteValue(const RemoteValue&) = default;
  RemoteValue& operator=(const RemoteValue&) = default;

  // Blocks until the closure is over, and returns its status; DeadlineExceeded before that.
  Status await(absl::Duration timeout = absl::InfiniteDuration()) const;
  // Blocks as await() does, without a timeout, and returns the tensors of the function. May be
  // called again; join() still reports the error of a closure.
  StatusOr<std::vector<HostArray>> fetch() const;

 private:
  friend class ClusterCoordinator;
  explicit RemoteValue(std::shared_ptr<internal::ValueState> state) : state_(std::move(state)) {}

  std::shared_ptr<internal::ValueState> state_;
};

struct CoordinatorOptions {
  int64_t queue_limit = 256 * 1024;             // closures that wait; schedule() waits for a place
  absl::Duration worker_wait = absl::Hours(1);  // without any worker, until closures fail
  int max_attempts = 10;                        // of a closure, each ended by a loss of its worker
  // Unset: $TESSERA_HEARTBEAT_INTERVAL, or 4 s. A task or a chief that is silent for more than
  // three of them is lost, and with a parameter server its variables: longer than a machine that is
  // busy takes to give a process its turn. From 1 ms to 1 h.
  std::optional<absl::Duration> heartbeat_interval = {};
  // Calls of a coordinator and of its values that wait for tasks have no end without a deadline,
  // but are never silent: after 10 s, 30 s, 1, 2 and 5 minutes, and every 5 minutes, the chief says
  // in one line on stderr which call waits, which tasks are missing, and which functions run for
  // how long (docs/errors.md, "Long waits"). This function gets the report instead of stderr; its
  // list of clients is empty, as tasks are not clients. It is called by a thread of the
  // coordinator's own until the coordinator's end, which waits for a call that runs. It must not
  // block, throw, nor call the coordinator.
  std::function<void(const WaitReport& report)> on_wait = {};
};

class ClusterCoordinator {
 public:
  // Connects to all tasks of the cluster, of which this process is the chief; waits for them for a
  // minute, or worker_wait if that is shorter.
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

  // Puts a variable on the parameter servers. Shards of all variables go to them in turn.
  // InvalidArgument for an array that is not valid, an empty name, or a shard of more than 1 GiB;
  // AlreadyExists for a name that is there; Unavailable where a parameter server is lost.
  StatusOr<RemoteVariable> variable(std::string name, const HostArray& initial);

  // Schedules one call. Blocks only while the queue is full. The value carries NotFound for a
  // function that the workers do not have, and InvalidArgument for arguments of more than 1 GiB or
  // a variable or a data set of another coordinator.
  RemoteValue schedule(absl::string_view function, std::vector<Argument> args = {});

  // Makes a data set on each worker, by a function of FunctionRegistry::add_dataset(), from its
  // start; each call of this makes another. Waits for the functions that run. A worker that is
  // away makes it with its first closure that reads it.
  //   NotFound         a function that the workers do not have
  //   InvalidArgument  a data set without batches; batches of other dtypes or ranks on some worker
  //   Unavailable      no worker was there for worker_wait, or a parameter server is lost
  // and the function's own error, with the name of the worker.
  StatusOr<RemoteDataset> create_per_worker_dataset(absl::string_view dataset_function);

  // Whether all closures are over; the first error since the last report, once.
  StatusOr<bool> done();
  // Waits until all closures are over; errors as done(). DeadlineExceeded: the closures go on.
  Status join(absl::Duration timeout = absl::InfiniteDuration());
  // Waits for these values, and returns them in this order; the first error among them.
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
  // FailedPrecondition, which every call then gives.
  Status check_not_moved_from() const;

  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::distribute

#endif  // TESSERA_SERVERS_CLUSTER_COORDINATOR_H_
