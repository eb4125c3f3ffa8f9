// SPDX-License-Identifier: Apache-2.0
//
// Runtime: what stands behind a Client, its live meshes and its tensors. Internal to dtensor/.
//
// Its last handle ends it (dispose() in runtime.cc). Owns, in this order: the connection to the
// coordinator, the devices of the client, and the caches on top of them. Thread-safe.
//
// Tensors live in the memory of the devices. That of the host serves barriers and what clients tell
// each other, and is the memory of devices that are CPUs.
#ifndef TESSERA_DTENSOR_RUNTIME_H_
#define TESSERA_DTENSOR_RUNTIME_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "base/wait_reports.h"
#include "collectives/collective.h"
#include "collectives/group_backend.h"
#include "collectives/platform/client_devices.h"
#include "collectives/platform/platform.h"
#include "device/arithmetic.h"
#include "device/device.h"
#include "device/local_device.h"
#include "device/stream.h"
#include "dtensor/bounded_cache.h"
#include "dtensor/client_hooks.h"
#include "dtensor/client_options.h"
#include "dtensor/program.h"
#include "dtensor/replicas.h"
#include "dtensor/step_program.h"
#include "job/coordinator/coordinator.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "mesh/mesh_runtime.h"
#include "relayout/fetch.h"
#include "relayout/topology.h"

namespace tessera {

// One device of this client that belongs to a mesh.
struct MeshDevice {
  int ordinal;
  int device_id;
  int64_t position;  // in the mesh
};
// Devices of a client whose lists need no memory from the heap.
inline constexpr size_t kInlineLocalDevices = 8;
using MeshDevices = absl::InlinedVector<MeshDevice, kInlineLocalDevices>;

class Runtime : public MeshRuntime, public std::enable_shared_from_this<Runtime> {
 public:
  static StatusOr<std::shared_ptr<Runtime>> connect(const ClientOptions& options,
                                                    const internal::ClientHooks& hooks);
  ~Runtime() override;

  // Tells the runtimes of this process apart; never given twice.
  uint64_t number() const { return number_; }
  int client_id() const { return coordinator_->client_id(); }
  int num_clients() const { return coordinator_->num_clients(); }
  int local_rank() const;
  absl::Span<const Device> devices() const { return devices_; }
  absl::Span<const Device> local_devices() const { return client_devices_->local(); }
  const Topology& topology() const { return topology_; }
  ReductionOrder reduction_order() const { return options_.reduction_order; }
  // The arithmetic of the CPUs of all clients. Equal on all clients.
  const Arithmetic& arithmetic() const { return arithmetic_; }

  StatusOr<Mesh> make_mesh(std::vector<MeshAxis> axes, std::vector<int> device_ids,
                           const MeshOptions& options);
  Status barrier(const Mesh& mesh, absl::string_view name,
                 std::optional<absl::Duration> timeout) override;
  Status sync_devices();
  // For NoSync: sync_devices() fails on `thread`.
  void forbid_sync(std::thread::id thread);
  void allow_sync(std::thread::id thread);
  Status shutdown(absl::Duration timeout);
  // FailedPrecondition after shutdown, and in a forked child.
  Status check_open() const;
  // FailedPrecondition where `call` would wait for the task that it is made from, and in a forked
  // child.
  Status check_may_wait(absl::string_view call) const {
    return client_devices_ == nullptr ? absl::OkStatus() : client_devices_->check_may_wait(call);
  }
  // For layers above, whose calls may wait too. Not null once the client is connected.
  WaitReports* reports() const { return reports_.get(); }
  // Whether this thread calls ClientOptions::on_wait.
  bool is_in_report() const { return reports_ != nullptr && reports_->is_current(); }
  bool is_in_forked_child() const {
    return client_devices_ != nullptr && !client_devices_->check_process().ok();
  }

  StatusOr<std::shared_ptr<GroupBackend>> group(absl::Span<const int> device_ids);
  // This client's devices in the mesh, by ordinal.
  MeshDevices local_devices_of(const Mesh& mesh) const;
  LocalDevice& device(int ordinal) const { return client_devices_->device(ordinal); }
  Stream& stream(int ordinal) const { return device(ordinal).stream(); }
  bool uses_host_memory() const { return client_devices_->uses_host_memory(); }
  // Memory of the host.
  ArenaPool& pool() { return *shared_pool(); }
  const std::shared_ptr<ArenaPool>& shared_pool() const { return client_devices_->host_memory(); }
  // As LocalDevice::new_buffer(). deferred_buffer(): gets its memory when the stream reaches its
  // op.
  StatusOr<std::shared_ptr<Buffer>> new_buffer(int ordinal, int64_t size_bytes) const {
    return device(ordinal).new_buffer(size_bytes);
  }
  std::shared_ptr<Buffer> deferred_buffer(int ordinal, int64_t size_bytes) const {
    return Buffer::deferred(device(ordinal).memory(), size_bytes);
  }
  // Memory of a local device that it has now.
  StatusOr<std::shared_ptr<Buffer>> allocate(int ordinal, int64_t size_bytes);

  // The key of a program, owned by the caller.
  struct ProgramArgs {
    const Layout& from;
    const Layout& to;
    const Shape& shape;
    DType dtype;
    Replicas replicas;
  };
  // This client's part of a relayout; made once for equal arguments.
  StatusOr<std::shared_ptr<const RelayoutProgram>> relayout_program(const ProgramArgs& args);
  // This client's part of a fetch; made once for each.
  StatusOr<std::shared_ptr<const StepProgram>> fetch_program(
      const std::shared_ptr<const Fetch>& fetch);
  // The state of the layer of operations for this client, which `make` makes at the first call. It
  // must hold nothing that holds the runtime.
  void* op_state(absl::FunctionRef<std::shared_ptr<void>()> make) {
    std::call_once(op_state_once_, [&] { op_state_ = make(); });
    return op_state_.get();
  }
  // Programs and plans of barriers that are kept.
  size_t num_cached() const { return programs_.size() + fetches_.size() + barrier_plans_.size(); }
  const host::HostBackend& backend() const { return client_devices_->backend(); }
  // A place in the order of this client's operations. The thread that starts an operation holds it
  // from the first device that gets a part of the operation to the last, so that two operations are
  // in the same order on every device. Meanwhile the thread must not wait for another thread or
  // client, nor call a function of the user's. FailedPrecondition after shutdown.
  using Turn = std::unique_lock<std::mutex>;
  StatusOr<Turn> take_turn();
  // Numbers the operations of this client, equal on all clients of an SPMD program.
  uint64_t next_op_number() { return op_number_.fetch_add(1, std::memory_order_relaxed) + 1; }

 private:
  Runtime(const ClientOptions& options, const internal::ClientHooks& hooks);
  // Reports of long waits, from now on.
  Status start_reports(int client_id);
  // What calls of this client at the coordinator wait for, of this kind, and of check-ins those
  // with this value. Called by the thread of the reports.
  WaitReports::Missing awaited(AwaitedCall::Kind kind, absl::string_view value) const;
  // The clients that connect() waits for.
  WaitReports::Missing awaited_by_connect() const;
  Status start_devices(std::unique_ptr<Platform> platform, const JobTimes& times, uint64_t job_word,
                       absl::Time deadline);
  using FindGroup =
      absl::FunctionRef<StatusOr<std::shared_ptr<GroupBackend>>(absl::Span<const int> device_ids)>;
  ProgramClient program_client(FindGroup find_group) const {
    return {devices_, local_devices(), uses_host_memory(), find_group};
  }
  // What barriers on one mesh have in common.
  struct BarrierPlan {
    Mesh mesh;
    SharedText where;  // "on {x=2}"
    MeshDevices local;
    std::shared_ptr<GroupBackend> group;       // null where no device is local
    std::vector<Collective::Ptr> collectives;  // of `local`
  };
  StatusOr<std::shared_ptr<const BarrierPlan>> barrier_plan(const Mesh& mesh);
  // The term that a device adds to the sum of a barrier.
  int32_t barrier_term(int device_id) const;
  // A barrier among idle devices of this client is there at once: the sum of their terms. False
  // where it must be waited for. Requires a turn.
  bool meet_here(const BarrierPlan& plan, int64_t* sum);
  // A device's part of a barrier that was started.
  struct Arrival {
    std::shared_ptr<Buffer> sum;
    std::optional<Work> work;
  };
  using Arrivals = absl::InlinedVector<Arrival, kInlineLocalDevices>;
  struct BarrierCall {
    absl::string_view name;
    std::optional<absl::Duration> timeout;
    absl::Time deadline;
  };
  // Gives all local devices their parts. Requires a turn.
  StatusOr<Arrivals> start_barrier(const BarrierPlan& plan, const BarrierCall& call);
  // Waits for them; the sum of the terms.
  static StatusOr<int64_t> await_barrier(const Arrivals& arrivals, const BarrierCall& call);
  // Refuses operations from now on; begun operations are in all of their streams.
  void close();
  // Ends the threads and closes the sockets. Objects that users still hold stay valid, and fail.
  // Functions that still run on a device at the deadline go on; a thread of its own then keeps the
  // runtime until they have ended. Returns which devices those are, empty for none. Requires
  // close().
  std::string stop(absl::Time deadline);

  const uint64_t number_;
  const ClientOptions options_;
  const internal::ClientHooks hooks_;
  std::vector<Device> devices_;
  Topology topology_;
  Arithmetic arithmetic_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<ClientDevices> client_devices_;
  std::atomic<uint64_t> op_number_{0};
  std::mutex order_mutex_;  // a Turn; taken before the locks of streams, groups and memory

  std::mutex no_sync_mutex_;
  std::vector<std::thread::id> no_sync_;  // once for each NoSync

  std::once_flag op_state_once_;
  std::shared_ptr<void> op_state_;

  std::mutex shutdown_mutex_;  // serialises shutdown()
  std::atomic<bool> open_{false};

  struct MeshHash {
    size_t operator()(const Mesh& mesh) const { return absl::HashOf(mesh); }
  };
  struct SameMesh {
    bool operator()(const Mesh& a, const Mesh& b) const { return a == b; }
  };
  BoundedCache<Mesh, BarrierPlan, MeshHash, SameMesh> barrier_plans_;

  struct ProgramKey {
    Layout from;
    Layout to;
    Shape shape;
    DType dtype;
    Replicas replicas;
    ProgramArgs args() const { return {from, to, shape, dtype, replicas}; }
  };
  // Finds a program without a copy of its key.
  struct ProgramHash {
    size_t operator()(const ProgramArgs& args) const {
      return absl::HashOf(args.from, args.to, args.shape, args.dtype, args.replicas);
    }
    size_t operator()(const ProgramKey& key) const { return (*this)(key.args()); }
  };
  struct SameProgram {
    bool operator()(const ProgramKey& key, const ProgramArgs& b) const {
      const ProgramArgs a = key.args();
      return a.dtype == b.dtype && a.replicas == b.replicas && a.shape == b.shape &&
             a.from == b.from && a.to == b.to;
    }
    bool operator()(const ProgramKey& a, const ProgramKey& b) const { return (*this)(a, b.args()); }
  };
  BoundedCache<ProgramKey, RelayoutProgram, ProgramHash, SameProgram> programs_;

  // A key is the fetch itself, which it keeps: no other one has its address.
  using FetchKey = std::shared_ptr<const Fetch>;
  struct FetchHash {
    size_t operator()(const FetchKey& key) const { return absl::HashOf(key.get()); }
  };
  struct SameFetch {
    bool operator()(const FetchKey& a, const FetchKey& b) const { return a == b; }
  };
  BoundedCache<FetchKey, StepProgram, FetchHash, SameFetch> fetches_;
  // When groups take so many bytes, what the caches hold of them is released.
  std::atomic<uint64_t> most_group_bytes_;
  // Uses what is above: it goes first.
  std::unique_ptr<WaitReports> reports_;
};

}  // namespace tessera

#endif  // TESSERA_DTENSOR_RUNTIME_H_
