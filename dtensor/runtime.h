// SPDX-License-Identifier: Apache-2.0
//
// Runtime: the implementation behind a Client, its live meshes and its tensors. Internal to
// dtensor/.
//
//   job()       the client's place in its job             JobConnection
//   devices()   its devices, and the memory of its host   ClientDevices
//   turns()     the order of its operations               Turns
//   programs()  groups, and prepared programs of operations  Programs
//
// Its last handle ends it (dispose() in runtime.cc). Thread-safe.
//
// Tensors live in the memory of the devices. Memory of the host serves barriers and the data that
// clients exchange, and is the memory of devices that are CPUs.
#ifndef TESSERA_DTENSOR_RUNTIME_H_
#define TESSERA_DTENSOR_RUNTIME_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/public.h"
#include "base/status.h"
#include "collectives/platform/client_devices.h"
#include "device/local_device.h"
#include "dtensor/background_work.h"
#include "dtensor/barriers.h"
#include "dtensor/client_hooks.h"
#include "dtensor/client_options.h"
#include "dtensor/job_connection.h"
#include "dtensor/programs.h"
#include "dtensor/rounds.h"
#include "dtensor/turns.h"
#include "mesh/mesh.h"
#include "mesh/mesh_runtime.h"

namespace tessera {

class TESSERA_INTERNAL Runtime : public MeshRuntime, public std::enable_shared_from_this<Runtime> {
 public:
  static StatusOr<std::shared_ptr<Runtime>> connect(const ClientOptions& options,
                                                    const internal::ClientHooks& hooks);
  ~Runtime() override;

  // Unique among the runtimes of this process; never reused.
  uint64_t number() const { return number_; }
  const JobConnection& job() const { return job_; }
  ClientDevices& devices() const { return job_.client_devices(); }
  LocalDevice& device(int ordinal) const { return devices().device(ordinal); }
  Turns& turns() { return turns_; }
  Programs& programs() { return programs_; }

  StatusOr<Mesh> make_mesh(std::vector<MeshAxis> axes, std::vector<int> device_ids,
                           const MeshOptions& options);
  Status barrier(const Mesh& mesh, absl::string_view name,
                 std::optional<absl::Duration> timeout) override {
    return barriers_.run(mesh, name, timeout);
  }
  Status sync_devices();
  // For NoSync: makes sync_devices() fail on `thread`.
  void forbid_sync(std::thread::id thread);
  void allow_sync(std::thread::id thread);
  Status shutdown(absl::Duration timeout);
  // The rounds of calls by the threads of the program.
  internal::Rounds& rounds() { return rounds_; }
  // Work of a layer above, which the first call makes.
  internal::BackgroundWork& background_work(
      absl::FunctionRef<std::unique_ptr<internal::BackgroundWork>()> make);
  // Whether the calling thread belongs to the background work.
  bool is_background_thread() const;
  // The state of the layer of operations for this client, which the first call makes by `make`. It
  // must not hold anything that holds the runtime.
  void* op_state(absl::FunctionRef<std::shared_ptr<void>()> make) {
    std::call_once(op_state_once_, [&] { op_state_ = make(); });
    return op_state_.get();
  }

 private:
  Runtime(JobConnection job, Barriers::TermOf barrier_term);

  const uint64_t number_;
  JobConnection job_;
  Turns turns_;
  Programs programs_;
  Barriers barriers_;

  std::mutex no_sync_mutex_;
  std::vector<std::thread::id> no_sync_;  // once for each NoSync

  std::once_flag op_state_once_;
  std::shared_ptr<void> op_state_;

  // Null where there is none.
  internal::BackgroundWork* background_work() const {
    return background_.load(std::memory_order_acquire);
  }

  internal::Rounds rounds_{"call"};

  std::mutex shutdown_mutex_;  // serialises shutdown()

  std::once_flag background_once_;
  std::unique_ptr<internal::BackgroundWork> background_owner_;  // destroyed first
  std::atomic<internal::BackgroundWork*> background_{nullptr};
};

}  // namespace tessera

#endif  // TESSERA_DTENSOR_RUNTIME_H_
