// SPDX-License-Identifier: Apache-2.0
//
// The Api of the CUDA toolkit, one call per function, and open_api() of a build that has it.
//
// The runtime library is linked statically and loads the driver itself when it is first called, so
// that a program with this part starts on a machine that has neither.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "device/cuda/kernel_launch.h"
#include "device/cuda/open_api.h"
#include "device/cuda/toolkit_status.h"

namespace tessera::cuda {
namespace {

static_assert(sizeof(Reduce) <= 32764 && sizeof(CopyBatch) <= 32764, "parameters of kernels");

Status status_of(cudaError_t error, absl::string_view function) {
  return toolkit_status(error, function);
}

cudaStream_t native(StreamHandle stream) { return reinterpret_cast<cudaStream_t>(stream); }
cudaEvent_t native(EventHandle event) { return reinterpret_cast<cudaEvent_t>(event); }

class ToolkitApi : public Api {
 public:
  StatusOr<int> device_count() override {
    int count = 0;
    const Status status = status_of(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    if (status.ok() && count > 0) return count;
    return absl::FailedPreconditionError(absl::StrCat(
        "no GPU: ", status.ok() ? "cudaGetDeviceCount: none is visible" : status.message(),
        "; device_type kCuda needs an NVIDIA GPU and its driver, for CUDA ", CUDART_VERSION / 1000,
        " or later; or use DeviceType::kCpu"));
  }

  StatusOr<std::string> bus_id(int gpu) override {
    char text[32] = {};
    TESSERA_RETURN_IF_ERROR(
        status_of(cudaDeviceGetPCIBusId(text, sizeof text, gpu), "cudaDeviceGetPCIBusId"));
    return std::string(text);
  }

  Status set_device(int gpu) override { return status_of(cudaSetDevice(gpu), "cudaSetDevice"); }

  Status enable_peer_access(int peer) override {
    int own = 0;
    TESSERA_RETURN_IF_ERROR(status_of(cudaGetDevice(&own), "cudaGetDevice"));
    int can = 0;
    TESSERA_RETURN_IF_ERROR(
        status_of(cudaDeviceCanAccessPeer(&can, own, peer), "cudaDeviceCanAccessPeer"));
    if (can == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("GPU ", own, " cannot reach the memory of GPU ", peer,
                       "; use GPUs that are connected to each other"));
    }
    const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
      cudaGetLastError();
      return absl::OkStatus();
    }
    return status_of(error, "cudaDeviceEnablePeerAccess");
  }

  StatusOr<std::byte*> allocate(uint64_t size_bytes) override {
    void* memory = nullptr;
    TESSERA_RETURN_IF_ERROR(status_of(cudaMalloc(&memory, size_bytes), "cudaMalloc"));
    return static_cast<std::byte*>(memory);
  }
  Status free(std::byte* memory) override { return status_of(cudaFree(memory), "cudaFree"); }

  StatusOr<std::byte*> allocate_pinned(uint64_t size_bytes) override {
    void* memory = nullptr;
    TESSERA_RETURN_IF_ERROR(
        status_of(cudaHostAlloc(&memory, size_bytes, cudaHostAllocPortable), "cudaHostAlloc"));
    return static_cast<std::byte*>(memory);
  }
  Status free_pinned(std::byte* memory) override {
    return status_of(cudaFreeHost(memory), "cudaFreeHost");
  }

  StatusOr<StreamHandle> create_stream() override {
    cudaStream_t stream = nullptr;
    TESSERA_RETURN_IF_ERROR(status_of(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                                      "cudaStreamCreateWithFlags"));
    return reinterpret_cast<StreamHandle>(stream);
  }
  Status destroy_stream(StreamHandle stream) override {
    return status_of(cudaStreamDestroy(native(stream)), "cudaStreamDestroy");
  }

  StatusOr<EventHandle> create_event() override {
    cudaEvent_t event = nullptr;
    TESSERA_RETURN_IF_ERROR(status_of(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                                      "cudaEventCreateWithFlags"));
    return reinterpret_cast<EventHandle>(event);
  }
  Status destroy_event(EventHandle event) override {
    return status_of(cudaEventDestroy(native(event)), "cudaEventDestroy");
  }

  Status record_event(EventHandle event, StreamHandle stream) override {
    return status_of(cudaEventRecord(native(event), native(stream)), "cudaEventRecord");
  }
  StatusOr<bool> query_event(EventHandle event) override {
    const cudaError_t error = cudaEventQuery(native(event));
    if (error == cudaErrorNotReady) {
      cudaGetLastError();
      return false;
    }
    TESSERA_RETURN_IF_ERROR(status_of(error, "cudaEventQuery"));
    return true;
  }
  Status wait_event(StreamHandle stream, EventHandle event) override {
    return status_of(cudaStreamWaitEvent(native(stream), native(event), 0), "cudaStreamWaitEvent");
  }

  Status copy(std::byte* to, const std::byte* from, uint64_t num_bytes,
              StreamHandle stream) override {
    return status_of(cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyDefault, native(stream)),
                     "cudaMemcpyAsync");
  }
  Status load_kernels() override {
    return toolkit_status(cuda::load_kernels(), "cudaFuncGetAttributes");
  }
  Status launch(const Kernel& kernel, StreamHandle stream) override {
    const int error = std::visit(
        [stream](const auto& values) { return cuda::launch(values, native(stream)); }, kernel);
    return toolkit_status(error, "the launch of a kernel");
  }
};

}  // namespace

StatusOr<std::shared_ptr<Api>> open_api() {
  // Streams share hardware queues, 8 unless CUDA is told otherwise when it starts: a message would
  // wait behind a kernel of NCCL on another stream.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  auto api = std::make_shared<ToolkitApi>();
  TESSERA_RETURN_IF_ERROR(api->device_count());
  return api;
}

bool has_toolkit() { return true; }

}  // namespace tessera::cuda
