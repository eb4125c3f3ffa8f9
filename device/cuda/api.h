// SPDX-License-Identifier: Apache-2.0
//
// Api: the functions of the CUDA runtime that Tessera uses, with the meaning that CUDA gives them.
//
//   StatusOr<StreamHandle> stream = api.create_stream();
//   api.copy(on_gpu, pinned, n, *stream);      enqueues, and returns
//   api.record_event(event, *stream);
//   api.query_event(event)                     true once the copy is done
//
// Two implementations: the toolkit's (toolkit_api.h), one call per function, and the fake
// (fake/fake_cuda.h), which runs on any machine. contract_test.cc tests both by one table. The
// backend gets an Api as an object, so a program may have both and nothing is chosen by linking.
//
// Errors are the errors of CUDA, with the function's name: ResourceExhausted for memory,
// Unavailable where the GPU or the driver is gone, Internal for the rest, which are bugs of the
// caller.
//
// Thread-safe. As in CUDA, set_device() holds for the calling thread. A thread that has set no
// device works on GPU 0: a call from it would make a context there, which takes some 500 MB. So
// every thread calls set_device() before anything except device_count() and bus_id(). allocate()
// and free() wait until the current GPU, and the GPUs that have peer access with it, have done all
// work that they received before.
#ifndef TESSERA_DEVICE_CUDA_API_H_
#define TESSERA_DEVICE_CUDA_API_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>

#include "base/status.h"
#include "device/cuda/kernels.h"

namespace tessera::cuda {

// cudaStream_t and cudaEvent_t, without the toolkit's headers.
using StreamHandle = struct OpaqueStream*;
using EventHandle = struct OpaqueEvent*;

using Kernel = std::variant<CopyBatch, Reduce, Fill, Iota, Cast>;

class Api {
 public:
  virtual ~Api() = default;

  // GPUs that this process may use, at least 1. FailedPrecondition "no GPU: ..." where there is
  // none, or no driver. cudaGetDeviceCount.
  virtual StatusOr<int> device_count() = 0;
  // The place of the GPU in this machine, "0000:19:00.0": the same in all processes, whatever
  // number each has for it (CUDA_VISIBLE_DEVICES). cudaDeviceGetPCIBusId.
  virtual StatusOr<std::string> bus_id(int gpu) = 0;
  // The GPU that the calling thread works on. cudaSetDevice.
  virtual Status set_device(int gpu) = 0;
  // Lets kernels of the current GPU read and write the memory of `peer`, if the two can.
  // FailedPrecondition where they cannot. cudaDeviceCanAccessPeer, cudaDeviceEnablePeerAccess.
  virtual Status enable_peer_access(int peer) = 0;

  // Memory of the current GPU, aligned to 256 bytes. Both functions wait (see above). cudaMalloc.
  virtual StatusOr<std::byte*> allocate(uint64_t size_bytes) = 0;
  virtual Status free(std::byte* memory) = 0;
  // Memory of the host from and to which all GPUs copy by themselves. cudaHostAlloc.
  virtual StatusOr<std::byte*> allocate_pinned(uint64_t size_bytes) = 0;
  virtual Status free_pinned(std::byte* memory) = 0;

  // Streams and events of the current GPU: non-blocking, without timing. Destroying a stream does
  // not cancel the work that it has received.
  virtual StatusOr<StreamHandle> create_stream() = 0;
  virtual Status destroy_stream(StreamHandle stream) = 0;
  virtual StatusOr<EventHandle> create_event() = 0;
  virtual Status destroy_event(EventHandle event) = 0;

  // The event is done when the stream has done all work that it has received so far. Both belong to
  // one GPU. Recording again replaces the earlier record. cudaEventRecord.
  virtual Status record_event(EventHandle event, StreamHandle stream) = 0;
  // Whether the event is done; an error of the GPU, once there is one. cudaEventQuery.
  virtual StatusOr<bool> query_event(EventHandle event) = 0;
  // Work that the stream receives from now on waits for the last record of the event.
  // cudaStreamWaitEvent.
  virtual Status wait_event(StreamHandle stream, EventHandle event) = 0;

  // Copies within and between memory of GPUs and pinned memory. cudaMemcpyAsync.
  virtual Status copy(std::byte* to, const std::byte* from, uint64_t num_bytes,
                      StreamHandle stream) = 0;
  // Loads the kernels of launch() on the current GPU, once before the first launch. Otherwise CUDA
  // loads a kernel at its first launch, which may wait for running kernels; a running kernel of
  // NCCL may wait for other GPUs.
  virtual Status load_kernels() = 0;
  // Runs a kernel of at least one item on a stream of the current GPU.
  virtual Status launch(const Kernel& kernel, StreamHandle stream) = 0;
};

}  // namespace tessera::cuda

#endif  // TESSERA_DEVICE_CUDA_API_H_
