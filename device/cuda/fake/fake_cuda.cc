// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/fake/fake_cuda.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "device/cuda/fake/run_kernel.h"

namespace tessera::cuda {
namespace {

// The alignment of cudaMalloc; the byte that fills memory before its first write.
constexpr uint64_t kAlignment = 256;
constexpr int kUnwritten = 0xcd;
constexpr int kPinned = -1;

// The thread's GPU, as of cudaSetDevice. CUDA takes kUnset for GPU 0.
constexpr int kUnset = -1;
thread_local int thread_gpu = kUnset;

}  // namespace

void FakeCuda::Marker::set() {
  std::lock_guard<std::mutex> lock(mutex);
  done.store(true, std::memory_order_release);
  changed.notify_all();
}

void FakeCuda::Marker::wait() {
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [this] { return done.load(std::memory_order_acquire); });
}

FakeCuda::FakeCuda(const FakeCudaOptions& options)
    : options_(options), number_([] {
        static std::atomic<int> num_doubles{0};
        return num_doubles.fetch_add(1);
      }()) {}

std::shared_ptr<FakeCuda> FakeCuda::create(const FakeCudaOptions& options) {
  return std::shared_ptr<FakeCuda>(new FakeCuda(options));
}

FakeCuda::~FakeCuda() {
  std::vector<std::thread> workers;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    held_ = false;
    for (auto& [handle, stream] : streams_) {
      stream->ending = true;
      stream->wake.notify_all();
      workers.push_back(std::move(stream->worker));
    }
  }
  for (std::thread& worker : workers) worker.join();
  for (const auto& [memory, allocation] : allocations_) std::free(const_cast<std::byte*>(memory));
}

std::vector<std::string> FakeCuda::misuses() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return misuses_;
}

int FakeCuda::num_calls(absl::string_view function) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = calls_.find(std::string(function));
  return it == calls_.end() ? 0 : it->second;
}

std::set<int> FakeCuda::contexts() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return contexts_;
}

uint64_t FakeCuda::allocated_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  uint64_t bytes = 0;
  for (const auto& [memory, allocation] : allocations_) {
    if (allocation.gpu != kPinned) bytes += allocation.size_bytes;
  }
  return bytes;
}

void FakeCuda::fail(absl::string_view function, int nth, Status error) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::string name(function);
  faults_[name][calls_[name] + nth] = std::move(error);
}

void FakeCuda::break_gpu(int gpu, Status error) {
  std::lock_guard<std::mutex> lock(mutex_);
  broken_[gpu] = std::move(error);
}

void FakeCuda::hold() {
  std::lock_guard<std::mutex> lock(mutex_);
  held_ = true;
}

void FakeCuda::release() {
  std::lock_guard<std::mutex> lock(mutex_);
  held_ = false;
  for (const auto& [handle, stream] : streams_) stream->wake.notify_all();
}

int FakeCuda::current_gpu() const { return std::clamp(thread_gpu, 0, options_.num_gpus - 1); }

void FakeCuda::expect_device(absl::string_view function) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (thread_gpu == kUnset) misuse(function, "a thread that has set no device").IgnoreError();
}

Status FakeCuda::report_misuse(absl::string_view function, std::string what) {
  std::lock_guard<std::mutex> lock(mutex_);
  return misuse(function, std::move(what));
}

Status FakeCuda::enter(absl::string_view function, int gpu) {
  const std::string name(function);
  const int call = ++calls_[name];
  // CUDA executes the call; the misuse is only the unneeded context on GPU 0.
  const bool needs_device = name != "device_count" && name != "bus_id" && name != "set_device";
  if (needs_device || name == "set_device") contexts_.insert(current_gpu());
  if (needs_device && thread_gpu == kUnset) {
    misuse(function, "a thread that has set no device").IgnoreError();
  }
  std::map<int, Status>& faults = faults_[name];
  if (const auto it = faults.find(call); it != faults.end()) {
    Status error = it->second;
    faults.erase(it);
    return error;
  }
  const auto it = broken_.find(gpu);
  return it == broken_.end() ? absl::OkStatus() : it->second;
}

Status FakeCuda::misuse(absl::string_view function, std::string what) {
  misuses_.push_back(absl::StrCat(function, ": ", what));
  return absl::InternalError(absl::StrCat("the fake of CUDA: ", misuses_.back()));
}

StatusOr<std::shared_ptr<FakeCuda::StreamState>> FakeCuda::find_stream(absl::string_view function,
                                                                       StreamHandle stream) {
  const auto it = streams_.find(stream);
  if (it == streams_.end()) return misuse(function, "a stream that is not there, or no longer");
  return it->second;
}

StatusOr<FakeCuda::EventState*> FakeCuda::find_event(absl::string_view function,
                                                     EventHandle event) {
  const auto it = events_.find(event);
  if (it == events_.end()) return misuse(function, "an event that is not there, or no longer");
  return &it->second;
}

StatusOr<int> FakeCuda::device_count() {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_RETURN_IF_ERROR(enter("device_count", 0));
  return options_.num_gpus;
}

StatusOr<std::string> FakeCuda::bus_id(int gpu) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (gpu < 0 || gpu >= options_.num_gpus) {
    return misuse("bus_id", absl::StrCat("GPU ", gpu, " of ", options_.num_gpus));
  }
  TESSERA_RETURN_IF_ERROR(enter("bus_id", gpu));
  return absl::StrFormat("%04x:%02x:00.0", number_ % 0x10000, gpu);
}

Status FakeCuda::set_device(int gpu) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (gpu < 0 || gpu >= options_.num_gpus) {
    return misuse("set_device", absl::StrCat("GPU ", gpu, " of ", options_.num_gpus));
  }
  thread_gpu = gpu;  // also a broken GPU
  return enter("set_device", gpu);
}

Status FakeCuda::enable_peer_access(int peer) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_RETURN_IF_ERROR(enter("enable_peer_access", current_gpu()));
  if (peer < 0 || peer >= options_.num_gpus || peer == current_gpu()) {
    return misuse("enable_peer_access", absl::StrCat("GPU ", peer, " as a peer"));
  }
  peers_.insert({current_gpu(), peer});
  return absl::OkStatus();
}

StatusOr<std::byte*> FakeCuda::allocate_on(int gpu, uint64_t size_bytes) {
  const uint64_t rounded = (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
  uint64_t held = 0;
  for (const auto& [memory, allocation] : allocations_) {
    if (allocation.gpu == gpu) held += allocation.size_bytes;
  }
  if (rounded == 0 || held + rounded > options_.gpu_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the fake of CUDA: ", size_bytes, " bytes beside ", held));
  }
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
  std::memset(memory, kUnwritten, rounded);
  allocations_[memory] = {rounded, gpu};
  return memory;
}

StatusOr<std::byte*> FakeCuda::allocate(uint64_t size_bytes) {
  std::unique_lock<std::mutex> lock(mutex_);
  TESSERA_RETURN_IF_ERROR(enter("allocate", current_gpu()));
  wait_for_peers(current_gpu(), lock);
  return allocate_on(current_gpu(), size_bytes);
}

StatusOr<std::byte*> FakeCuda::allocate_pinned(uint64_t size_bytes) {
  std::unique_lock<std::mutex> lock(mutex_);
  TESSERA_RETURN_IF_ERROR(enter("allocate_pinned", current_gpu()));
  wait_for_peers(current_gpu(), lock);
  return allocate_on(kPinned, size_bytes);
}

StatusOr<std::byte*> FakeCuda::map_memory(uint64_t size_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_RETURN_IF_ERROR(enter("allocate", current_gpu()));
  return allocate_on(current_gpu(), size_bytes);
}

void FakeCuda::wait_for_peers(int gpu, std::unique_lock<std::mutex>& lock) {
  const auto is_concerned = [&](int other) {
    return other == gpu || peers_.count({gpu, other}) > 0 || peers_.count({other, gpu}) > 0;
  };
  std::vector<std::pair<std::shared_ptr<StreamState>, uint64_t>> given;
  for (const auto& [handle, stream] : streams_) {
    if (is_concerned(stream->gpu)) {
      given.emplace_back(stream, stream->num_done + stream->queue.size());
    }
  }
  for (const auto& [stream, number] : given) {
    changed_.wait(lock,
                  [&, state = stream.get(), last = number] { return state->num_done >= last; });
  }
}

void FakeCuda::wait_for_gpu(int gpu) {
  std::unique_lock<std::mutex> lock(mutex_);
  wait_for_peers(gpu, lock);
}

bool FakeCuda::is_in_flight(const Range& range) const {
  for (const auto& [handle, stream] : streams_) {
    for (const Operation& operation : stream->queue) {
      for (const Range& used : operation.ranges) {
        if (used.begin < range.begin + range.size_bytes &&
            range.begin < used.begin + used.size_bytes) {
          return true;
        }
      }
    }
  }
  return false;
}

Status FakeCuda::free_on(absl::string_view function, std::byte* memory, bool pinned,
                         std::unique_lock<std::mutex>& lock) {
  const auto it = allocations_.find(memory);
  if (it == allocations_.end() || (it->second.gpu == kPinned) != pinned) {
    return misuse(function, "memory that is not allocated, or no longer");
  }
  const Range range = {memory, it->second.size_bytes};
  Status status;
  if (is_in_flight(range)) {
    status = misuse(function, "memory that is in flight");
    changed_.wait(lock, [&] { return !is_in_flight(range); });
  }
  allocations_.erase(memory);
  std::free(memory);
  return status;
}

Status FakeCuda::free(std::byte* memory) {
  std::unique_lock<std::mutex> lock(mutex_);
  TESSERA_RETURN_IF_ERROR(enter("free", current_gpu()));
  const Status status = free_on("free", memory, /*pinned=*/false, lock);
  wait_for_peers(current_gpu(), lock);
  return status;
}

Status FakeCuda::unmap_memory(std::byte* memory) {
  std::unique_lock<std::mutex> lock(mutex_);
  TESSERA_RETURN_IF_ERROR(enter("free", current_gpu()));
  return free_on("free", memory, /*pinned=*/false, lock);
}

Status FakeCuda::free_pinned(std::byte* memory) {
  std::unique_lock<std::mutex> lock(mutex_);
  TESSERA_RETURN_IF_ERROR(enter("free_pinned", current_gpu()));
  const Status status = free_on("free_pinned", memory, /*pinned=*/true, lock);
  wait_for_peers(current_gpu(), lock);
  return status;
}

StatusOr<StreamHandle> FakeCuda::create_stream() {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_RETURN_IF_ERROR(enter("create_stream", current_gpu()));
  const uintptr_t number = next_handle_++;
  const auto handle = reinterpret_cast<StreamHandle>(number);
  auto stream = std::make_shared<StreamState>();
  stream->gpu = current_gpu();
  if (options_.num_queues > 0) {
    stream->hardware_queue = {stream->gpu, num_streams_of_[stream->gpu]++ % options_.num_queues};
  }
  stream->worker = std::thread([this, stream, number] { work(stream, number); });
  streams_[handle] = std::move(stream);
  return handle;
}

Status FakeCuda::destroy_stream(StreamHandle stream) {
  std::unique_lock<std::mutex> lock(mutex_);
  TESSERA_RETURN_IF_ERROR(enter("destroy_stream", current_gpu()));
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<StreamState> state,
                           find_stream("destroy_stream", stream));
  // Waits for the stream's work, and joins its thread here: a process that exits with the fake
  // alive must leave no ended thread unjoined, which ThreadSanitizer reports as a leak.
  state->ending = true;
  state->wake.notify_all();
  changed_.wait(lock, [&state] { return state->queue.empty(); });
  streams_.erase(stream);
  std::thread worker = std::move(state->worker);
  lock.unlock();
  worker.join();
  return absl::OkStatus();
}

StatusOr<EventHandle> FakeCuda::create_event() {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_RETURN_IF_ERROR(enter("create_event", current_gpu()));
  const auto handle = reinterpret_cast<EventHandle>(next_handle_++);
  events_[handle].gpu = current_gpu();
  return handle;
}

Status FakeCuda::destroy_event(EventHandle event) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_RETURN_IF_ERROR(enter("destroy_event", current_gpu()));
  TESSERA_RETURN_IF_ERROR(find_event("destroy_event", event));
  events_.erase(event);
  return absl::OkStatus();
}

Status FakeCuda::record_event(EventHandle event, StreamHandle stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<StreamState> on,
                           find_stream("record_event", stream));
  TESSERA_RETURN_IF_ERROR(enter("record_event", on->gpu));
  TESSERA_ASSIGN_OR_RETURN(EventState * state, find_event("record_event", event));
  if (state->gpu != on->gpu) {
    return misuse("record_event",
                  absl::StrCat("an event of GPU ", state->gpu, " on a stream of GPU ", on->gpu));
  }
  auto marker = std::make_shared<Marker>();
  state->last = marker;
  enqueue(*on, {[marker] { marker->set(); }, {}});
  return absl::OkStatus();
}

StatusOr<bool> FakeCuda::query_event(EventHandle event) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(EventState * state, find_event("query_event", event));
  TESSERA_RETURN_IF_ERROR(enter("query_event", state->gpu));
  if (state->last == nullptr) return misuse("query_event", "an event that was never recorded");
  return state->last->done.load(std::memory_order_acquire);
}

Status FakeCuda::wait_event(StreamHandle stream, EventHandle event) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<StreamState> on,
                           find_stream("wait_event", stream));
  TESSERA_RETURN_IF_ERROR(enter("wait_event", on->gpu));
  TESSERA_ASSIGN_OR_RETURN(EventState * state, find_event("wait_event", event));
  if (state->last == nullptr) return misuse("wait_event", "an event that was never recorded");
  if (state->last->done.load(std::memory_order_acquire)) return absl::OkStatus();
  enqueue(*on, {[marker = state->last] { marker->wait(); }, {}});
  return absl::OkStatus();
}

Status FakeCuda::check_range(absl::string_view function, const Range& range, int gpu,
                             bool needs_peer) {
  auto it = allocations_.upper_bound(range.begin);
  if (it == allocations_.begin()) return misuse(function, "memory that CUDA does not know");
  --it;
  const auto offset = static_cast<uint64_t>(range.begin - it->first);
  if (offset + range.size_bytes > it->second.size_bytes) {
    return misuse(function, offset >= it->second.size_bytes ? "memory that CUDA does not know"
                                                            : "bytes beyond the end of the memory");
  }
  const int owner = it->second.gpu;
  if (needs_peer && owner != kPinned && owner != gpu && peers_.count({gpu, owner}) == 0) {
    return misuse(function,
                  absl::StrCat("memory of GPU ", owner, " from GPU ", gpu, " without peer access"));
  }
  return absl::OkStatus();
}

Status FakeCuda::copy(std::byte* to, const std::byte* from, uint64_t num_bytes,
                      StreamHandle stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<StreamState> on, find_stream("copy", stream));
  TESSERA_RETURN_IF_ERROR(enter("copy", on->gpu));
  std::vector<Range> ranges = {{from, num_bytes}, {to, num_bytes}};
  for (const Range& range : ranges) {
    TESSERA_RETURN_IF_ERROR(check_range("copy", range, on->gpu, /*needs_peer=*/false));
  }
  enqueue(*on, {[=] { std::memcpy(to, from, num_bytes); }, std::move(ranges)});
  return absl::OkStatus();
}

Status FakeCuda::load_kernels() {
  std::unique_lock<std::mutex> lock(mutex_);
  TESSERA_RETURN_IF_ERROR(enter("load_kernels", current_gpu()));
  with_kernels_.insert(current_gpu());
  return absl::OkStatus();
}

Status FakeCuda::launch(const Kernel& kernel, StreamHandle stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<StreamState> on, find_stream("launch", stream));
  TESSERA_RETURN_IF_ERROR(enter("launch", on->gpu));
  if (current_gpu() != on->gpu) {
    return misuse("launch", absl::StrCat("a stream of GPU ", on->gpu, " while GPU ", current_gpu(),
                                         " is current"));
  }
  if (with_kernels_.count(on->gpu) == 0) {
    // CUDA loads it now, and may wait for kernels that wait for this one.
    return misuse("launch", absl::StrCat("the kernels of GPU ", on->gpu, " are not loaded"));
  }
  if (std::string why = why_invalid(kernel); !why.empty()) return misuse("launch", std::move(why));
  std::vector<Range> ranges;
  for (const auto& [begin, size_bytes] : touched_bytes(kernel)) {
    ranges.push_back({begin, size_bytes});
    TESSERA_RETURN_IF_ERROR(check_range("launch", ranges.back(), on->gpu, /*needs_peer=*/true));
  }
  auto held = std::make_shared<const Kernel>(kernel);
  enqueue(*on, {[held] { run_kernel(*held); }, std::move(ranges)});
  return absl::OkStatus();
}

Status FakeCuda::enqueue_work(absl::string_view function,
                              absl::Span<const std::pair<const std::byte*, uint64_t>> memory,
                              std::function<void()> run, StreamHandle stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<StreamState> on, find_stream(function, stream));
  TESSERA_RETURN_IF_ERROR(enter(function, on->gpu));
  if (current_gpu() != on->gpu) {
    return misuse(function, absl::StrCat("a stream of GPU ", on->gpu, " while GPU ", current_gpu(),
                                         " is current"));
  }
  std::vector<Range> ranges;
  for (const auto& [begin, size_bytes] : memory) {
    ranges.push_back({begin, size_bytes});
    TESSERA_RETURN_IF_ERROR(check_range(function, ranges.back(), on->gpu, /*needs_peer=*/true));
  }
  enqueue(*on, {std::move(run), std::move(ranges)});
  return absl::OkStatus();
}

void FakeCuda::enqueue(StreamState& stream, Operation operation) {
  stream.queue.push_back(std::move(operation));
  if (stream.hardware_queue.first >= 0) {
    hardware_queues_[stream.hardware_queue].push_back(&stream);
  }
  stream.wake.notify_all();
}

bool FakeCuda::is_at_head(const StreamState& stream) const {
  const auto it = hardware_queues_.find(stream.hardware_queue);
  return it == hardware_queues_.end() || it->second.empty() || it->second.front() == &stream;
}

void FakeCuda::leave_head(const StreamState& stream) {
  const auto it = hardware_queues_.find(stream.hardware_queue);
  if (it == hardware_queues_.end()) return;
  it->second.pop_front();
  if (!it->second.empty()) it->second.front()->wake.notify_all();
}

void FakeCuda::work(const std::shared_ptr<StreamState>& stream, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    stream->wake.wait(lock, [&] {
      return stream->queue.empty() ? stream->ending : !held_ && is_at_head(*stream);
    });
    if (stream->queue.empty()) return;
    leave_head(*stream);
    const std::function<void()> run = std::move(stream->queue.front().run);
    lock.unlock();
    // Not before each: a thread that waits yields too, and where many do little else is done.
    if (options_.most_yields > 0 && random() % 8 == 0) {
      const auto yields = 1 + random() % static_cast<uint64_t>(options_.most_yields);
      for (uint64_t i = 0; i < yields; ++i) sched_yield();
    }
    run();
    lock.lock();
    stream->queue.pop_front();
    ++stream->num_done;
    changed_.notify_all();
  }
}

}  // namespace tessera::cuda
