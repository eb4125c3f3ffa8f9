// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/cuda_device.h"

#include <utility>

#include "absl/container/inlined_vector.h"

namespace tessera::cuda {

Status enable_peers(Api& api, absl::Span<const int> gpus) {
  for (const int gpu : gpus) {
    TESSERA_RETURN_IF_ERROR(api.set_device(gpu));
    for (const int peer : gpus) {
      if (peer != gpu) TESSERA_RETURN_IF_ERROR(api.enable_peer_access(peer));
    }
  }
  return absl::OkStatus();
}

StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::create(std::shared_ptr<Api> api, int gpu,
                                                         StreamObserver* observer,
                                                         SlabSource source) {
  TESSERA_RETURN_IF_ERROR(api->set_device(gpu));
  TESSERA_RETURN_IF_ERROR(api->load_kernels());
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<CudaStream> stream,
                           CudaStream::create(api, gpu, observer));
  return std::unique_ptr<CudaDevice>(
      new CudaDevice(std::move(stream), std::move(api), std::move(source)));
}

CudaDevice::CudaDevice(std::unique_ptr<CudaStream> stream, std::shared_ptr<Api> api,
                       SlabSource source)
    : slabs_(std::make_shared<SlabPool>(api, stream->queue().gpu(), SlabPool::Kind::kGpu,
                                        std::move(source))),
      pinned_(std::make_shared<SlabPool>(api, stream->queue().gpu(), SlabPool::Kind::kPinned)),
      stream_(std::move(stream)) {}

Status CudaDevice::use(const Buffer& input) {
  TESSERA_RETURN_IF_ERROR(input.issued().wait());
  TESSERA_RETURN_IF_ERROR(input.ready().status());
  if (input.is_unverified() && !input.ready().done()) {
    doubts_.inputs.push_back(input.filled().share_ready());
  }
  return absl::OkStatus();
}

Status CudaDevice::Doubts::status() const {
  // The stream has ended the ops that fill the inputs before.
  for (const std::shared_ptr<Completion>& input : inputs) {
    TESSERA_RETURN_IF_ERROR(input->status());
  }
  for (const std::function<Status()>& check : checks) TESSERA_RETURN_IF_ERROR(check());
  return absl::OkStatus();
}

Status CudaDevice::copy_bytes(std::byte* to, const std::byte* from, int64_t num_bytes) {
  if (num_bytes == 0 || to == from) return absl::OkStatus();
  return queue().api()->copy(to, from, static_cast<uint64_t>(num_bytes), queue().handle());
}

Status CudaDevice::copy(const CopyPlan& plan) {
  for (const DenseCopy& copy : plan.dense) {
    TESSERA_RETURN_IF_ERROR(copy_bytes(copy.to, copy.from, static_cast<int64_t>(copy.num_bytes)));
  }
  for (const CopyBatch& batch : plan.batches) TESSERA_RETURN_IF_ERROR(launch(batch));
  return absl::OkStatus();
}

Status CudaDevice::launch(const Kernel& kernel) {
  return queue().api()->launch(kernel, queue().handle());
}

Status CudaDevice::reduce(absl::Span<const Reduce> plan) {
  for (const Reduce& reduce : plan) TESSERA_RETURN_IF_ERROR(launch(reduce));
  return absl::OkStatus();
}

Status CudaDevice::fill(DType dtype, const void* element, std::byte* out, int64_t num_elements) {
  if (num_elements == 0) return absl::OkStatus();
  return launch(plan_fill(dtype, element, out, num_elements));
}

Status CudaDevice::iota(DType dtype, const Shape& shape, const Box& box, std::byte* out) {
  for (const Iota& iota : plan_iota(dtype, shape, box, out)) TESSERA_RETURN_IF_ERROR(launch(iota));
  return absl::OkStatus();
}

void CudaDevice::finish(absl::Span<const std::shared_ptr<Buffer>> buffers, const Status& status) {
  // Ops that failed before they were enqueued are ended by another thread than the thread of the
  // tasks.
  Doubts doubts;
  if (status.ok() || stream_->runs_task_here()) doubts = std::exchange(doubts_, {});
  const bool is_unverified = !doubts.checks.empty() || !doubts.inputs.empty();
  absl::InlinedVector<std::shared_ptr<Completion>, 4> readies;
  for (const std::shared_ptr<Buffer>& buffer : buffers) {
    if (status.ok() && is_unverified) buffer->mark_unverified();
    buffer->mutable_issued().set(status);
    if (!status.ok()) buffer->mutable_ready().set(status);
    readies.push_back(buffer->share_ready());
  }
  if (!status.ok()) return;
  // Later readers of the buffer get the error, and the memory is the stream's.
  if (!is_unverified) {
    return stream_->when_done(
        [readies = std::move(readies)](const Status& done) {
          for (const std::shared_ptr<Completion>& ready : readies) ready->set(done);
        },
        Stream::OnFailure::kAtOnce);
  }
  stream_->when_done(
      [this, readies = std::move(readies), doubts = std::move(doubts)](const Status& done) {
        const Status found = done.ok() ? doubts.status() : done;
        if (done.ok() && !found.ok()) stream_->report(found);
        for (const std::shared_ptr<Completion>& ready : readies) ready->set(found);
      },
      Stream::OnFailure::kAtOnce);
}

void CudaDevice::upload(const std::shared_ptr<const Buffer>& from,
                        const std::shared_ptr<Buffer>& to) {
  produce("upload", to, [this, num_bytes = to->size_bytes(), from](std::byte* out) {
    const Status status = copy_bytes(out, from->data(), num_bytes);
    // The pinned memory is the host's again only when the copy is made.
    if (status.ok()) stream_->when_done([from](const Status&) {});
    return status;
  });
}

std::shared_ptr<const Buffer> CudaDevice::download(std::shared_ptr<const Buffer> from) {
  auto to = Buffer::deferred(pinned_, from->size_bytes());
  stream_->enqueue("download", [this, from = std::move(from), to] {
    Status status = use(*from);
    if (status.ok()) status = to->take_memory();
    if (status.ok()) status = copy_bytes(to->mutable_data(), from->data(), from->size_bytes());
    finish(to, status);
    // The host may drop it before the copy is made, and another device take the memory.
    if (status.ok()) stream_->when_done([to](const Status&) {});
    return absl::OkStatus();  // the reader gets the error
  });
  return to;
}

}  // namespace tessera::cuda
