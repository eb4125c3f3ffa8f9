// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/gpu/timed_apis.h"

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>

namespace tessera::benchmarks {
namespace {

using cuda::EventHandle;
using cuda::StreamHandle;
using nccl::CommHandle;
using nccl::UniqueId;

template <class Api>
class TimedApi : public Api {
 public:
  using Open = std::function<StatusOr<std::shared_ptr<Api>>()>;
  TimedApi(std::shared_ptr<CallLog> log, Open open)
      : log_(std::move(log)), open_(std::move(open)) {}

 protected:
  template <class Call>
  std::invoke_result_t<Call, Api&> timed(const char* function, Call call) {
    std::call_once(once_, [this] { opened_ = open_(); });
    TESSERA_RETURN_IF_ERROR(opened_.status());
    const CallLog::Timer timer(*log_, function);
    return call(**opened_);
  }

 private:
  const std::shared_ptr<CallLog> log_;
  const Open open_;
  std::once_flag once_;
  StatusOr<std::shared_ptr<Api>> opened_ = nullptr;
};

class TimedCuda final : public TimedApi<cuda::Api> {
 public:
  using TimedApi::TimedApi;

  StatusOr<int> device_count() override {
    return timed("device_count", [&](cuda::Api& api) { return api.device_count(); });
  }
  StatusOr<std::string> bus_id(int gpu) override {
    return timed("bus_id", [&](cuda::Api& api) { return api.bus_id(gpu); });
  }
  Status set_device(int gpu) override {
    return timed("set_device", [&](cuda::Api& api) { return api.set_device(gpu); });
  }
  Status enable_peer_access(int peer) override {
    return timed("enable_peer_access",
                 [&](cuda::Api& api) { return api.enable_peer_access(peer); });
  }
  StatusOr<std::byte*> allocate(uint64_t size_bytes) override {
    return timed("allocate", [&](cuda::Api& api) { return api.allocate(size_bytes); });
  }
  Status free(std::byte* memory) override {
    return timed("free", [&](cuda::Api& api) { return api.free(memory); });
  }
  StatusOr<std::byte*> allocate_pinned(uint64_t size_bytes) override {
    return timed("allocate_pinned",
                 [&](cuda::Api& api) { return api.allocate_pinned(size_bytes); });
  }
  Status free_pinned(std::byte* memory) override {
    return timed("free_pinned", [&](cuda::Api& api) { return api.free_pinned(memory); });
  }
  StatusOr<StreamHandle> create_stream() override {
    return timed("create_stream", [&](cuda::Api& api) { return api.create_stream(); });
  }
  Status destroy_stream(StreamHandle stream) override {
    return timed("destroy_stream", [&](cuda::Api& api) { return api.destroy_stream(stream); });
  }
  StatusOr<EventHandle> create_event() override {
    return timed("create_event", [&](cuda::Api& api) { return api.create_event(); });
  }
  Status destroy_event(EventHandle event) override {
    return timed("destroy_event", [&](cuda::Api& api) { return api.destroy_event(event); });
  }
  Status record_event(EventHandle event, StreamHandle stream) override {
    return timed("record_event", [&](cuda::Api& api) { return api.record_event(event, stream); });
  }
  StatusOr<bool> query_event(EventHandle event) override {
    return timed("query_event", [&](cuda::Api& api) { return api.query_event(event); });
  }
  Status wait_event(StreamHandle stream, EventHandle event) override {
    return timed("wait_event", [&](cuda::Api& api) { return api.wait_event(stream, event); });
  }
  Status copy(std::byte* to, const std::byte* from, uint64_t num_bytes,
              StreamHandle stream) override {
    return timed("copy", [&](cuda::Api& api) { return api.copy(to, from, num_bytes, stream); });
  }
  Status load_kernels() override {
    return timed("load_kernels", [&](cuda::Api& api) { return api.load_kernels(); });
  }
  Status launch(const cuda::Kernel& kernel, StreamHandle stream) override {
    return timed("launch", [&](cuda::Api& api) { return api.launch(kernel, stream); });
  }
};

class TimedMath final : public TimedApi<cuda::MathApi> {
 public:
  using TimedApi::TimedApi;

  Status load_kernels() override {
    return timed("load_kernels", [&](cuda::MathApi& math) { return math.load_kernels(); });
  }
  Status launch(const cuda::MathKernel& kernel, StreamHandle stream) override {
    return timed("launch", [&](cuda::MathApi& math) { return math.launch(kernel, stream); });
  }
  Status multiply(const cuda::Gemm& gemm, cuda::WorkspaceSource workspace,
                  StreamHandle stream) override {
    return timed("multiply",
                 [&](cuda::MathApi& math) { return math.multiply(gemm, workspace, stream); });
  }
};

class TimedNccl final : public TimedApi<nccl::Api> {
 public:
  using TimedApi::TimedApi;

  StatusOr<UniqueId> get_unique_id() override {
    return timed("get_unique_id", [&](nccl::Api& api) { return api.get_unique_id(); });
  }
  StatusOr<CommHandle> comm_init_rank(int num_ranks, const UniqueId& id, int rank) override {
    return timed("comm_init_rank",
                 [&](nccl::Api& api) { return api.comm_init_rank(num_ranks, id, rank); });
  }
  StatusOr<bool> poll(CommHandle comm) override {
    return timed("poll", [&](nccl::Api& api) { return api.poll(comm); });
  }
  StatusOr<std::byte*> mem_alloc(uint64_t size_bytes) override {
    return timed("mem_alloc", [&](nccl::Api& api) { return api.mem_alloc(size_bytes); });
  }
  Status mem_free(std::byte* memory) override {
    return timed("mem_free", [&](nccl::Api& api) { return api.mem_free(memory); });
  }
  Status group_start() override {
    return timed("group_start", [&](nccl::Api& api) { return api.group_start(); });
  }
  Status group_end() override {
    return timed("group_end", [&](nccl::Api& api) { return api.group_end(); });
  }
  Status send(const std::byte* from, uint64_t num_bytes, int peer, CommHandle comm,
              StreamHandle stream) override {
    return timed("send",
                 [&](nccl::Api& api) { return api.send(from, num_bytes, peer, comm, stream); });
  }
  Status recv(std::byte* to, uint64_t num_bytes, int peer, CommHandle comm,
              StreamHandle stream) override {
    return timed("recv",
                 [&](nccl::Api& api) { return api.recv(to, num_bytes, peer, comm, stream); });
  }
  Status all_gather(const std::byte* from, std::byte* to, uint64_t num_bytes, CommHandle comm,
                    StreamHandle stream) override {
    return timed("all_gather",
                 [&](nccl::Api& api) { return api.all_gather(from, to, num_bytes, comm, stream); });
  }
  Status broadcast(const std::byte* from, std::byte* to, uint64_t num_bytes, int root,
                   CommHandle comm, StreamHandle stream) override {
    return timed("broadcast", [&](nccl::Api& api) {
      return api.broadcast(from, to, num_bytes, root, comm, stream);
    });
  }
  Status all_reduce(const std::byte* from, std::byte* to, uint64_t count, DType dtype, ReduceOp op,
                    CommHandle comm, StreamHandle stream) override {
    return timed("all_reduce", [&](nccl::Api& api) {
      return api.all_reduce(from, to, count, dtype, op, comm, stream);
    });
  }
  Status reduce(const std::byte* from, std::byte* to, uint64_t count, DType dtype, ReduceOp op,
                int root, CommHandle comm, StreamHandle stream) override {
    return timed("reduce", [&](nccl::Api& api) {
      return api.reduce(from, to, count, dtype, op, root, comm, stream);
    });
  }
  Status reduce_scatter(const std::byte* from, std::byte* to, uint64_t count, DType dtype,
                        ReduceOp op, CommHandle comm, StreamHandle stream) override {
    return timed("reduce_scatter", [&](nccl::Api& api) {
      return api.reduce_scatter(from, to, count, dtype, op, comm, stream);
    });
  }
  Status comm_revoke(CommHandle comm) override {
    return timed("comm_revoke", [&](nccl::Api& api) { return api.comm_revoke(comm); });
  }
  Status comm_finalize(CommHandle comm) override {
    return timed("comm_finalize", [&](nccl::Api& api) { return api.comm_finalize(comm); });
  }
  Status comm_destroy(CommHandle comm) override {
    return timed("comm_destroy", [&](nccl::Api& api) { return api.comm_destroy(comm); });
  }
  Status comm_abort(CommHandle comm) override {
    return timed("comm_abort", [&](nccl::Api& api) { return api.comm_abort(comm); });
  }
};

}  // namespace

std::shared_ptr<const cuda::Libraries> timed_cuda(
    std::shared_ptr<CallLog> log,
    std::function<StatusOr<std::shared_ptr<const cuda::Libraries>>()> open) {
  struct Opened {
    std::once_flag once;
    StatusOr<std::shared_ptr<const cuda::Libraries>> libraries = nullptr;
  };
  const auto libraries = [open = std::move(open), opened = std::make_shared<Opened>()] {
    std::call_once(opened->once, [&] { opened->libraries = open(); });
    return opened->libraries;
  };
  const auto open_cuda = [libraries]() -> StatusOr<std::shared_ptr<cuda::Api>> {
    TESSERA_ASSIGN_OR_RETURN(const auto found, libraries());
    return found->cuda;
  };
  const auto open_math = [libraries]() -> StatusOr<std::shared_ptr<cuda::MathApi>> {
    TESSERA_ASSIGN_OR_RETURN(const auto found, libraries());
    return found->math;
  };
  return std::make_shared<const cuda::Libraries>(cuda::Libraries{
      std::make_shared<TimedCuda>(log, open_cuda), std::make_shared<TimedMath>(log, open_math)});
}

std::shared_ptr<nccl::Api> timed_nccl(std::shared_ptr<CallLog> log,
                                      std::function<StatusOr<std::shared_ptr<nccl::Api>>()> open) {
  return std::make_shared<TimedNccl>(std::move(log), std::move(open));
}

}  // namespace tessera::benchmarks
