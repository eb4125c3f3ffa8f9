// SPDX-License-Identifier: Apache-2.0
//
// FakeCuda: the CUDA runtime of a machine without a GPU, for tests.
//
//   auto api = FakeCuda::create({.num_gpus = 2});
//   ... the backend works with it as with the toolkit's functions ...
//   EXPECT_THAT(api->misuses(), IsEmpty());
//
// Memory of a GPU is memory of the host, a stream is a thread, and kernels run their bodies
// (kernel_bodies.h) item by item. Order is real: work of a stream happens later, at the same time
// as work of other streams, and only events order them. ThreadSanitizer therefore sees a missing
// event as a data race.
//
// Calls that CUDA leaves undefined, or that fail only because of a bug of the caller, are recorded
// as misuses:
// - memory that does not exist, is freed while in flight, or belongs to another GPU without peer
//   access;
// - handles that were destroyed, and events that were never recorded;
// - a stream of another GPU than the current one;
// - a copy of pageable memory;
// - a kernel before load_kernels();
// - a call from a thread that has not set its device, which would make a context on GPU 0.
//
// As in CUDA, allocating and freeing wait until the current GPU, and every GPU that has peer access
// with it, has done all work that it received before. Work that itself waits for the caller
// therefore deadlocks here as it does there.
//
// With FakeCudaOptions::num_queues streams share queues as in CUDA: work begins in the order in
// which the streams of a queue were given it, so that work that waits at its head holds up the
// others.
//
// Faults: fail() makes a call return an error, break_gpu() makes all of them, hold() keeps the
// streams from doing anything. Thread-safe.
#ifndef TESSERA_DEVICE_CUDA_FAKE_FAKE_CUDA_H_
#define TESSERA_DEVICE_CUDA_FAKE_FAKE_CUDA_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "device/cuda/api.h"

namespace tessera::cuda {

struct FakeCudaOptions {
  int num_gpus = 1;
  uint64_t gpu_bytes = uint64_t{1} << 30;
  // Upper limit of the yields of a stream before an operation. It yields before one in eight
  // operations, at random.
  int most_yields = 0;
  // Hardware queues of a GPU, which its streams take in turn; 0: one for each. CUDA has 8 for a
  // process, 32 as open_api() sets it. Clients that are threads of one fake share them.
  int num_queues = 0;
};

class FakeCuda : public Api {
 public:
  static std::shared_ptr<FakeCuda> create(const FakeCudaOptions& options = {});
  ~FakeCuda() override;

  // The misuses so far, in order.
  std::vector<std::string> misuses() const;
  // How often a function was called, by its name here: "copy".
  int num_calls(absl::string_view function) const;
  // GPUs on which a call has made a context, which takes some 500 MB there.
  std::set<int> contexts() const;
  // Bytes that are allocated now on all GPUs.
  uint64_t allocated_bytes() const;

  // The `nth` call of the function from now on (1 is the next) returns the error, and does nothing.
  void fail(absl::string_view function, int nth, Status error);
  // From now on every call on this GPU returns the error, as after a fault of a kernel.
  void break_gpu(int gpu, Status error);
  // Streams finish their present operation, and do nothing else until release().
  void hold();
  void release();

  // For fakes of libraries that work on CUDA's streams: the GPU of the calling thread, and work of
  // the library, which reads or writes these bytes (begin, number) of the stream's GPU. The work
  // may block, as a kernel may that waits for another kernel.
  int current_device() const { return current_gpu(); }
  // Reports a misuse if the calling thread has not set its device.
  void expect_device(absl::string_view function);
  // Adds to misuses(), and returns the error.
  Status report_misuse(absl::string_view function, std::string what);
  // Waits as free() does, without freeing anything.
  void wait_for_gpu(int gpu);
  // Memory by cuMemCreate() and cuMemMap(), and its end: neither waits for the GPU.
  StatusOr<std::byte*> map_memory(uint64_t size_bytes);
  Status unmap_memory(std::byte* memory);
  Status enqueue_work(absl::string_view function,
                      absl::Span<const std::pair<const std::byte*, uint64_t>> memory,
                      std::function<void()> run, StreamHandle stream);

  StatusOr<int> device_count() override;
  // Two GPUs of a process never have the same id, also in different fakes.
  StatusOr<std::string> bus_id(int gpu) override;
  Status set_device(int gpu) override;
  Status enable_peer_access(int peer) override;
  StatusOr<std::byte*> allocate(uint64_t size_bytes) override;
  Status free(std::byte* memory) override;
  StatusOr<std::byte*> allocate_pinned(uint64_t size_bytes) override;
  Status free_pinned(std::byte* memory) override;
  StatusOr<StreamHandle> create_stream() override;
  Status destroy_stream(StreamHandle stream) override;
  StatusOr<EventHandle> create_event() override;
  Status destroy_event(EventHandle event) override;
  Status record_event(EventHandle event, StreamHandle stream) override;
  StatusOr<bool> query_event(EventHandle event) override;
  Status wait_event(StreamHandle stream, EventHandle event) override;
  Status copy(std::byte* to, const std::byte* from, uint64_t num_bytes,
              StreamHandle stream) override;
  Status load_kernels() override;
  Status launch(const Kernel& kernel, StreamHandle stream) override;

 private:
  struct Allocation {
    uint64_t size_bytes;
    int gpu;  // -1: pinned memory of the host
  };
  // Bytes that something reads or writes.
  struct Range {
    const std::byte* begin;
    uint64_t size_bytes;
  };
  // The meaning of one record of an event.
  struct Marker {
    std::mutex mutex;
    std::condition_variable changed;
    std::atomic<bool> done{false};
    void set();
    void wait();
  };
  struct Operation {
    std::function<void()> run;
    std::vector<Range> ranges;
  };
  struct StreamState {
    int gpu = 0;
    std::pair<int, int> hardware_queue = {-1, 0};  // GPU, number; of none: GPU -1
    std::deque<Operation> queue;                   // the first one may be running
    uint64_t num_done = 0;
    bool ending = false;
    std::condition_variable wake;  // of the worker
    std::thread worker;
  };
  struct EventState {
    int gpu = 0;
    std::shared_ptr<Marker> last;  // null: never recorded
  };

  explicit FakeCuda(const FakeCudaOptions& options);
  int current_gpu() const;
  // The injected error of this call, if it has one. Requires the lock, as the members below.
  Status enter(absl::string_view function, int gpu);
  Status misuse(absl::string_view function, std::string what);
  StatusOr<std::shared_ptr<StreamState>> find_stream(absl::string_view function,
                                                     StreamHandle stream);
  StatusOr<EventState*> find_event(absl::string_view function, EventHandle event);
  // Whether a stream of `gpu` may touch these bytes.
  Status check_range(absl::string_view function, const Range& range, int gpu, bool needs_peer);
  StatusOr<std::byte*> allocate_on(int gpu, uint64_t size_bytes);
  Status free_on(absl::string_view function, std::byte* memory, bool pinned,
                 std::unique_lock<std::mutex>& lock);
  bool is_in_flight(const Range& range) const;
  // Waits until the GPU and its peers have done what their streams were given before the call.
  void wait_for_peers(int gpu, std::unique_lock<std::mutex>& lock);
  void enqueue(StreamState& stream, Operation operation);
  // Whether the stream's next operation is at the head of its hardware queue; takes it from there.
  bool is_at_head(const StreamState& stream) const;
  void leave_head(const StreamState& stream);
  void work(const std::shared_ptr<StreamState>& stream, uint64_t seed);

  const FakeCudaOptions options_;
  const int number_;                 // among the fakes of the process
  mutable std::mutex mutex_;         // guards everything below
  std::condition_variable changed_;  // an operation is done
  bool held_ = false;
  uintptr_t next_handle_ = 0x1000;  // a handle that was destroyed is never given out again
  std::map<const std::byte*, Allocation> allocations_;
  std::map<StreamHandle, std::shared_ptr<StreamState>> streams_;
  std::map<EventHandle, EventState> events_;
  std::set<std::pair<int, int>> peers_;
  std::set<int> contexts_;             // GPUs
  std::map<int, int> num_streams_of_;  // that were ever made, by GPU
  // By GPU and number: the streams of operations that have not begun, in the order of the calls.
  std::map<std::pair<int, int>, std::deque<StreamState*>> hardware_queues_;
  std::set<int> with_kernels_;  // GPUs
  std::map<int, Status> broken_;
  std::map<std::string, std::map<int, Status>> faults_;  // by function, by number of the call
  std::map<std::string, int> calls_;
  std::vector<std::string> misuses_;
};

}  // namespace tessera::cuda

#endif  // TESSERA_DEVICE_CUDA_FAKE_FAKE_CUDA_H_
