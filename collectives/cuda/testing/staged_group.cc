// SPDX-License-Identifier: Apache-2.0
#include "collectives/cuda/testing/staged_group.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "collectives/pending_work.h"

namespace tessera::cuda {

StatusOr<std::shared_ptr<Stage>> Stage::create(std::shared_ptr<Api> api, int gpu) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<CudaQueue> queue, CudaQueue::create(api, gpu));
  return std::shared_ptr<Stage>(
      new Stage(std::move(queue), std::make_shared<SlabPool>(api, gpu, SlabPool::Kind::kGpu),
                std::make_shared<SlabPool>(api, gpu, SlabPool::Kind::kPinned)));
}

Status Stage::copy(std::byte* to, const std::byte* from, int64_t num_bytes) {
  TESSERA_RETURN_IF_ERROR(
      queue_->api()->copy(to, from, static_cast<uint64_t>(num_bytes), queue_->handle()));
  return queue_->wait_done(absl::InfiniteFuture());
}

StatusOr<std::shared_ptr<Buffer>> Stage::upload(const std::byte* from, int64_t num_bytes) {
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> on_gpu, Buffer::allocate(memory_, num_bytes));
  if (num_bytes == 0) return on_gpu;
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Buffer> pinned,
                           Buffer::allocate(pinned_, num_bytes));
  std::memcpy(pinned->mutable_data(), from, static_cast<size_t>(num_bytes));
  TESSERA_RETURN_IF_ERROR(copy(on_gpu->mutable_data(), pinned->data(), num_bytes));
  return on_gpu;
}

Status Stage::download(std::byte* to, const std::byte* from, int64_t num_bytes) {
  if (num_bytes == 0) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Buffer> pinned,
                           Buffer::allocate(pinned_, num_bytes));
  TESSERA_RETURN_IF_ERROR(copy(pinned->mutable_data(), from, num_bytes));
  std::memcpy(to, pinned->data(), static_cast<size_t>(num_bytes));
  return absl::OkStatus();
}

class StagedGroup::StagedWork : public internal::PendingWork {
 public:
  explicit StagedWork(std::shared_ptr<Stage> stage) : stage_(std::move(stage)) {}

  bool done() const override { return failed_.has_value() || work_->done(); }
  Status wait_until(absl::Time deadline) override {
    if (failed_.has_value()) return *failed_;
    const Status status =
        deadline == absl::InfiniteFuture() ? work_->await() : work_->wait(deadline - steady_now());
    std::lock_guard<std::mutex> lock(mutex_);
    // A failed operation must not have written either: the suite checks this.
    if (!fetched_) TESSERA_RETURN_IF_ERROR(stage_->download(host_out_, gpu_out_, out_bytes_));
    fetched_ = true;
    return status;
  }

 private:
  friend class StagedGroup;

  const std::shared_ptr<Stage> stage_;
  std::optional<Work> work_;
  std::optional<Status> failed_;
  std::shared_ptr<Buffer> memory_[2];
  std::byte* host_out_ = nullptr;
  const std::byte* gpu_out_ = nullptr;
  int64_t out_bytes_ = 0;
  std::mutex mutex_;  // guards fetched_
  bool fetched_ = false;
};

StatusOr<std::shared_ptr<StagedGroup::StagedWork>> StagedGroup::stage(const Collective& collective,
                                                                      Arguments* arguments) {
  const auto work = std::make_shared<StagedWork>(stage_);
  // The memory of a barrier is the host's. A refused operation uses none.
  if (collective.kind() == OpKind::kBarrier || !collective.error().ok()) return work;
  const int64_t size = dtype_size(collective.dtype());
  const std::byte* in = arguments->in;
  std::byte* out = arguments->out;
  const int64_t in_bytes = collective.in_count().value_or(0) * size;
  const int64_t out_bytes = collective.out_count().value_or(0) * size;
  work->host_out_ = out;
  work->out_bytes_ = out_bytes;
  const bool overlap = in_bytes > 0 && out_bytes > 0 && in < out + out_bytes && out < in + in_bytes;
  if (overlap) {
    const std::byte* begin = std::min<const std::byte*>(in, out);
    const std::byte* end = std::max<const std::byte*>(in + in_bytes, out + out_bytes);
    TESSERA_ASSIGN_OR_RETURN(work->memory_[0], stage_->upload(begin, end - begin));
    arguments->in = work->memory_[0]->data() + (in - begin);
    arguments->out = work->memory_[0]->mutable_data() + (out - begin);
  } else {
    TESSERA_ASSIGN_OR_RETURN(work->memory_[0], stage_->upload(in, in_bytes));
    TESSERA_ASSIGN_OR_RETURN(work->memory_[1], stage_->upload(out, out_bytes));
    arguments->in = work->memory_[0]->data();
    arguments->out = work->memory_[1]->mutable_data();
  }
  work->gpu_out_ = arguments->out;
  return work;
}

Work StagedGroup::start(Collective::Ptr collective, Arguments arguments) {
  auto staged = stage(*collective, &arguments);
  if (!staged.ok()) {
    const auto failed = std::make_shared<StagedWork>(stage_);
    failed->failed_ = staged.status();
    return internal::make_work(failed);
  }
  (*staged)->work_ = group_->start(std::move(collective), std::move(arguments));
  std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(works_, [](const auto& old) { return old.use_count() == 1 && old->done(); });
  works_.push_back(*staged);
  return internal::make_work(*std::move(staged));
}

}  // namespace tessera::cuda
