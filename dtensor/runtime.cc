// SPDX-License-Identifier: Apache-2.0
#include "dtensor/runtime.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "dtensor/describe_devices.h"
#include "dtensor/no_sync.h"
#include "dtensor/run_before_exit.h"
#include "mesh/mesh_runtime.h"

namespace tessera {
namespace {

uint64_t next_runtime_number() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

// Ends the runtime when its last handle is destroyed:
//
//   where the last handle goes    the runtime
//   on a thread of the user's     ends at once: ~Runtime waits for the threads of its devices
//   on a thread of a device       ends on another thread, because no thread can wait for itself
//   in a report of a long wait    the same
//   on a thread of a layer above  the same
//   in a forked child             stays: its threads and shared memory are the parent's
//
// The first case: a program may rely on the job being left when the handle is destroyed. The second
// case occurs where a local function holds a tensor, a mesh or the client, and outlives all other
// handles.
void dispose(Runtime* runtime) {
  if (!runtime->devices().check_process().ok()) return keep_until_exit(runtime);
  if (runtime->devices().check_may_wait("~Client").ok() && !runtime->job().reports().is_current() &&
      !runtime->is_background_thread()) {
    delete runtime;
    return;
  }
  if (run_before_exit("the end of a client", [runtime] { delete runtime; }).ok()) return;
  // It stays in the job until the process ends, as if a handle were left.
  keep_until_exit(runtime);
}

}  // namespace

Runtime::Runtime(JobConnection job, Barriers::TermOf barrier_term)
    : number_(next_runtime_number()),
      job_(std::move(job)),
      turns_(devices(), job_.client_id()),
      programs_(job_, turns_),
      barriers_(devices(), turns_, programs_, std::move(barrier_term)) {}

StatusOr<std::shared_ptr<Runtime>> Runtime::connect(const ClientOptions& options,
                                                    const internal::ClientHooks& hooks) {
  TESSERA_ASSIGN_OR_RETURN(JobConnection job, JobConnection::connect(options, hooks));
  std::shared_ptr<Runtime> runtime(new Runtime(std::move(job), hooks.barrier_term), dispose);
  // After all that lasts as long as the process was made: it goes first.
  prepare_run_before_exit();
  return runtime;
}

Runtime::~Runtime() {
  background_owner_.reset();
  if (turns_.close()) job_.stop(absl::InfiniteFuture(), /*keep=*/nullptr);
}

StatusOr<Mesh> Runtime::make_mesh(std::vector<MeshAxis> axes, std::vector<int> device_ids,
                                  const MeshOptions& options) {
  TESSERA_RETURN_IF_ERROR(turns_.check_open());
  const absl::Span<const Device> devices = job_.devices();
  for (const int id : device_ids) {
    if (id >= static_cast<int>(devices.size())) {
      return absl::InvalidArgumentError(absl::StrCat("a mesh names device ", id, "; the job has ",
                                                     devices.size(), " devices, 0 to ",
                                                     devices.size() - 1));
    }
  }
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, Mesh::create(std::move(axes), std::move(device_ids)));
  std::set<int> owners;
  for (const int id : mesh.device_ids()) owners.insert(devices[id].client_id);
  if (owners.count(job_.client_id()) > 0 && owners.size() > 1) {
    const std::vector<int> participants(owners.begin(), owners.end());
    const absl::Time deadline =
        options.timeout.has_value() ? steady_now() + *options.timeout : absl::InfiniteFuture();
    const std::string value =
        absl::StrCat(mesh.to_string(), " of devices ", describe_devices(mesh.device_ids()));
    TESSERA_RETURN_IF_ERROR(job_.check_in("create_mesh", value, participants, deadline));
  }
  return internal::with_runtime(mesh, shared_from_this());
}

Status Runtime::sync_devices() {
  TESSERA_RETURN_IF_ERROR(turns_.check_open());
  TESSERA_RETURN_IF_ERROR(devices().check_may_wait("sync_devices"));
  {
    std::lock_guard<std::mutex> lock(no_sync_mutex_);
    const std::thread::id self = std::this_thread::get_id();
    if (std::find(no_sync_.begin(), no_sync_.end(), self) != no_sync_.end()) {
      return absl::FailedPreconditionError(
          "sync_devices is called in a replica function, and other replicas have yet to give the "
          "devices what it would wait for; call it after run()");
    }
  }
  Status status = devices().sync();
  if (internal::BackgroundWork* const work = background_work()) {
    status.Update(work->take_error());
  }
  return status;
}

internal::BackgroundWork& Runtime::background_work(
    absl::FunctionRef<std::unique_ptr<internal::BackgroundWork>()> make) {
  std::call_once(background_once_, [&] {
    background_owner_ = make();
    background_.store(background_owner_.get(), std::memory_order_release);
  });
  return *background_owner_;
}

bool Runtime::is_background_thread() const {
  const internal::BackgroundWork* const work = background_work();
  return work != nullptr && work->is_current();
}

void Runtime::forbid_sync(std::thread::id thread) {
  std::lock_guard<std::mutex> lock(no_sync_mutex_);
  no_sync_.push_back(thread);
}

void Runtime::allow_sync(std::thread::id thread) {
  std::lock_guard<std::mutex> lock(no_sync_mutex_);
  no_sync_.erase(std::find(no_sync_.begin(), no_sync_.end(), thread));
}

namespace internal {

NoSync::NoSync(const Client& client) : runtime_(runtime_of(client)) {
  runtime_->forbid_sync(std::this_thread::get_id());
}
NoSync::~NoSync() { runtime_->allow_sync(std::this_thread::get_id()); }

}  // namespace internal

Status Runtime::shutdown(absl::Duration timeout) {
  TESSERA_RETURN_IF_ERROR(devices().check_may_wait("shutdown"));
  if (job_.reports().is_current()) {
    return absl::FailedPreconditionError(
        "shutdown is called in on_wait, and would wait for that call; call it in another thread");
  }
  std::lock_guard<std::mutex> lock(shutdown_mutex_);
  if (!turns_.close()) return absl::OkStatus();
  const absl::Time deadline = steady_now() + timeout;
  Status status;
  if (internal::BackgroundWork* const work = background_work()) {
    status = work->finish(deadline);
    status.Update(work->take_error());
  }
  status.Update(
      job_.leave(std::max(deadline - steady_now(), absl::ZeroDuration()), shared_from_this()));
  return status;
}

}  // namespace tessera
