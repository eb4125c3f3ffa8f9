// SPDX-License-Identifier: Apache-2.0
//
// Streams, memory and copies of a device on a GPU, on the fake.
#include "device/cuda/cuda_device.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "device/completion.h"
#include "device/cuda/fake/fake_cuda.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/deadline.h"
#include "tests/support/matchers.h"

namespace tessera::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::StatusIs;

class CudaDeviceTest : public ::testing::Test {
 protected:
  void TearDown() override {
    device_ = nullptr;
    EXPECT_THAT(api_->misuses(), IsEmpty());
    EXPECT_EQ(api_->allocated_bytes(), 0u);
  }
  CudaDevice& device() {
    if (device_ == nullptr) device_ = *CudaDevice::create(api_, 0, nullptr);
    return *device_;
  }
  std::shared_ptr<Buffer> pinned(const std::vector<int32_t>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(int32_t));
    std::shared_ptr<Buffer> buffer = *Buffer::allocate(device().pinned(), bytes);
    std::memcpy(buffer->mutable_data(), values.data(), static_cast<size_t>(bytes));
    return buffer;
  }
  std::shared_ptr<Buffer> on_gpu(int64_t size_bytes) {
    return Buffer::deferred(device().memory(), size_bytes);
  }
  static std::vector<int32_t> values(const Buffer& buffer) {
    const auto* first = reinterpret_cast<const int32_t*>(buffer.data());
    return {first, first + buffer.size_bytes() / 4};
  }

  const testing::TestDeadline deadline_{absl::Seconds(60), "cuda_device_test"};
  std::shared_ptr<FakeCuda> api_ = FakeCuda::create({.gpu_bytes = 64 << 20});
  std::unique_ptr<CudaDevice> device_;
};

TEST_F(CudaDeviceTest, UploadsAndDownloads) {
  const std::vector<int32_t> sent = {1, 2, 3, 4, 5};
  const std::shared_ptr<Buffer> buffer = on_gpu(20);
  device().upload(pinned(sent), buffer);
  const std::shared_ptr<const Buffer> back = device().download(buffer);
  ASSERT_THAT(back->ready().wait(), IsOk());
  EXPECT_EQ(values(*back), sent);
  EXPECT_THAT(device().stream().sync(), IsOk());
}

// Slabs of another allocator: all of them come from it and go back to it, in its own unit, and
// blocks are in them.
TEST_F(CudaDeviceTest, SlabsMayComeFromALibrary) {
  std::vector<uint64_t> given;
  std::vector<std::byte*> slabs;
  std::vector<std::byte*> freed;
  SlabSource source;
  source.allocate = [&](uint64_t size_bytes) {
    given.push_back(size_bytes);
    slabs.push_back(*api_->allocate(size_bytes));
    return slabs.back();
  };
  source.free = [&](std::byte* slab) {
    freed.push_back(slab);
    return api_->free(slab);
  };
  source.granularity = int64_t{2} << 20;
  auto pool = std::make_shared<SlabPool>(api_, 0, SlabPool::Kind::kGpu, source);
  std::shared_ptr<Buffer> small = *Buffer::allocate(pool, 1000);
  std::shared_ptr<Buffer> large = *Buffer::allocate(pool, 5'000'000);
  EXPECT_THAT(given, ::testing::ElementsAre(2u << 20, 6u << 20));
  ASSERT_EQ(slabs.size(), 2u);
  EXPECT_EQ(small->data(), slabs[0]);
  EXPECT_EQ(large->data(), slabs[1]);
  small = large = nullptr;
  EXPECT_THAT(freed, IsEmpty());
  pool = nullptr;
  EXPECT_THAT(freed, ::testing::ElementsAre(slabs[0], slabs[1]));
}

// The issuing thread is done long before the GPU has begun.
TEST_F(CudaDeviceTest, IssuedComesBeforeReady) {
  api_->hold();
  const std::shared_ptr<Buffer> buffer = on_gpu(20);
  device().upload(pinned({1, 2, 3, 4, 5}), buffer);
  const std::shared_ptr<const Buffer> back = device().download(buffer);
  EXPECT_THAT(buffer->issued().wait(), IsOk());
  EXPECT_THAT(back->issued().wait(), IsOk());
  EXPECT_FALSE(buffer->ready().done());
  EXPECT_FALSE(back->ready().done());
  EXPECT_THAT(device().queue().wait_done(absl::InfinitePast()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("still busy")));
  api_->release();
  EXPECT_THAT(back->ready().wait(), IsOk());
  EXPECT_TRUE(buffer->ready().done());
  EXPECT_EQ(values(*back).back(), 5);
}

TEST_F(CudaDeviceTest, SyncWaitsForTheGpu) {
  api_->hold();
  const std::shared_ptr<Buffer> buffer = on_gpu(4);
  device().upload(pinned({7}), buffer);
  std::atomic<bool> synced{false};
  std::thread waits([&] {
    EXPECT_THAT(device().stream().sync(), IsOk());
    synced = true;
  });
  EXPECT_THAT(buffer->issued().wait(), IsOk());
  EXPECT_FALSE(synced);
  api_->release();
  waits.join();
  EXPECT_TRUE(buffer->ready().done());
}

// A block that is given back serves the next buffer at once, in the order of the stream.
TEST_F(CudaDeviceTest, MemoryIsReusedInTheOrderOfTheStream) {
  std::vector<std::shared_ptr<const Buffer>> results;
  {
    // A pool that grew while the stream is held would wait for it.
    std::vector<std::shared_ptr<Buffer>> reserved = {*Buffer::allocate(device().memory(), 1 << 20)};
    for (int i = 0; i < 42; ++i) reserved.push_back(*Buffer::allocate(device().pinned(), 1 << 20));
  }
  api_->hold();
  for (int32_t round = 0; round < 20; ++round) {
    const std::shared_ptr<Buffer> buffer = on_gpu(1 << 20);
    device().upload(pinned(std::vector<int32_t>(1 << 18, round)), buffer);
    results.push_back(device().download(buffer));
    ASSERT_THAT(results.back()->issued().wait(), IsOk());
  }
  api_->release();
  for (int32_t round = 0; round < 20; ++round) {
    ASSERT_THAT(results[round]->ready().wait(), IsOk());
    EXPECT_EQ(values(*results[round]), std::vector<int32_t>(1 << 18, round));
  }
  // Two at a time at most, for the task that frees one may still be ending.
  EXPECT_LE(device().slabs()->peak_live_bytes(), 2 << 20);
}

TEST_F(CudaDeviceTest, FillsAndCounts) {
  const std::shared_ptr<Buffer> buffer = on_gpu(4 * 12);
  const Box box = {{1, 0}, {2, 3}};
  device().stream().enqueue("fill", [&] {
    Status status = buffer->take_memory();
    const int32_t nine = 9;
    status.Update(device().fill(DType::kInt32, &nine, buffer->mutable_data(), 12));
    status.Update(device().iota(DType::kInt32, {4, 3}, box, buffer->mutable_data()));
    device().finish(buffer, status);
    return status;
  });
  const std::shared_ptr<const Buffer> back = device().download(buffer);
  ASSERT_THAT(back->ready().wait(), IsOk());
  EXPECT_EQ(values(*back), (std::vector<int32_t>{3, 4, 5, 6, 7, 8, 9, 9, 9, 9, 9, 9}));
}

// A check is made when the GPU is done, and belongs to the op that added it.
TEST_F(CudaDeviceTest, AChecksErrorIsThatOfItsOp) {
  const std::shared_ptr<Buffer> checked = on_gpu(4);
  const std::shared_ptr<Buffer> next = on_gpu(4);
  const int32_t nine = 9;
  std::atomic<int> num_checks{0};
  api_->hold();
  device().produce("checked", checked, [&](std::byte* out) {
    device().add_check([&num_checks] {
      ++num_checks;
      return absl::OutOfRangeError("found by the GPU");
    });
    return device().fill(DType::kInt32, &nine, out, 1);
  });
  device().produce("next", next,
                   [&](std::byte* out) { return device().fill(DType::kInt32, &nine, out, 1); });
  EXPECT_THAT(checked->issued().wait(), IsOk());
  EXPECT_TRUE(checked->is_unverified());
  EXPECT_EQ(num_checks, 0);
  api_->release();
  EXPECT_THAT(checked->ready().wait(), StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_THAT(next->ready().wait(), IsOk());
  EXPECT_EQ(num_checks, 1);
  EXPECT_THAT(device().stream().sync(), StatusIs(absl::StatusCode::kOutOfRange));
}

TEST_F(CudaDeviceTest, TooLittleMemoryIsTheBuffersError) {
  const std::shared_ptr<Buffer> buffer = on_gpu(int64_t{1} << 30);
  device().upload(pinned({1}), buffer);
  EXPECT_THAT(buffer->ready().wait(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("a buffer needs 1 GiB of GPU 0, which has no more; the device "
                                 "holds 0 B, of which 0 B are in use")));
  EXPECT_THAT(device().download(buffer)->ready().wait(),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(device().stream().sync(), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(device().stream().sync(), IsOk());
}

// A fault of a kernel is found by the reaper, and is the error of everything after it.
TEST_F(CudaDeviceTest, ABrokenGpuIsTheErrorOfWhatIsPending) {
  api_->hold();
  const std::shared_ptr<Buffer> buffer = on_gpu(4);
  device().upload(pinned({7}), buffer);
  ASSERT_THAT(buffer->issued().wait(), IsOk());
  api_->break_gpu(0, absl::InternalError("cudaErrorIllegalAddress"));
  EXPECT_THAT(buffer->ready().wait(),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("IllegalAddress")));
  EXPECT_THAT(device().stream().sync(),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("IllegalAddress")));
  api_->release();
  api_->break_gpu(0, absl::OkStatus());  // so that the test can free what there is
}

// Work that fails after it was given: buffers know at once, before any task that comes later looks
// at them; other memory is kept until the GPU is past it. Work that is given afterwards succeeds.
TEST_F(CudaDeviceTest, GivenWorkFailsInOneGo) {
  api_->hold();
  const std::shared_ptr<Buffer> buffer = on_gpu(4);
  device().upload(pinned({7}), buffer);
  Completion late;
  device().stream().enqueue("late", [&] {
    device().stream().when_done([&](const Status& status) { late.set(status); });
    return absl::OkStatus();
  });
  ASSERT_THAT(buffer->issued().wait(), IsOk());
  // The task has run when a later one has.
  Completion run;
  device().stream().enqueue("run", [&] {
    run.set(absl::OkStatus());
    return absl::OkStatus();
  });
  ASSERT_THAT(run.wait(), IsOk());
  device().stream().fail_given(absl::UnavailableError("a peer is gone"));
  EXPECT_THAT(buffer->ready().status(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_FALSE(late.done());
  const std::shared_ptr<const Buffer> made_of_it = device().download(buffer);
  EXPECT_THAT(made_of_it->ready().wait(), StatusIs(absl::StatusCode::kUnavailable));
  api_->release();
  EXPECT_THAT(late.wait(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("a peer is gone")));
  EXPECT_FALSE(device().stream().sync().ok());
  const std::shared_ptr<Buffer> next = on_gpu(4);
  device().upload(pinned({8}), next);
  EXPECT_THAT(next->ready().wait(), IsOk());
  EXPECT_THAT(device().stream().sync(), IsOk());
}

// Both the issuing thread and the reaping thread would wait for themselves.
TEST_F(CudaDeviceTest, TasksAndCallbacksKnowTheirStream) {
  CudaStream& stream = device().stream();
  std::string task = "none";
  std::string callback = "none";
  stream.enqueue("local_map", [&] {
    task = std::string(stream.task_here().value_or("none"));
    stream.when_done(
        [&](const Status&) { callback = std::string(stream.task_here().value_or("none")); });
    return absl::OkStatus();
  });
  EXPECT_THAT(stream.sync(), IsOk());
  EXPECT_EQ(task, "local_map");
  EXPECT_EQ(callback, "");
  EXPECT_EQ(stream.task_here(), std::nullopt);
}

// The gate is called before work counts as done, and its status is the result of the work.
TEST_F(CudaDeviceTest, TheGateDecidesWhatIsDone) {
  std::atomic<bool> is_open{false};
  device().stream().set_gate(
      [&]() -> Status { return is_open ? absl::OkStatus() : absl::AbortedError("not so fast"); });
  const std::shared_ptr<Buffer> first = on_gpu(4);
  device().upload(pinned({7}), first);
  EXPECT_THAT(first->ready().wait(), StatusIs(absl::StatusCode::kAborted));
  is_open = true;
  const std::shared_ptr<Buffer> second = on_gpu(4);
  device().upload(pinned({8}), second);
  EXPECT_THAT(second->ready().wait(), IsOk());
}

// A GPU that does not come back ends everything, and for good.
TEST_F(CudaDeviceTest, ALostGpuHoldsUpNobody) {
  api_->hold();
  const std::shared_ptr<Buffer> before = on_gpu(4);
  device().upload(pinned({7}), before);
  ASSERT_THAT(before->issued().wait(), IsOk());
  device().stream().lose(absl::UnavailableError("GPU 0 is lost"));
  const std::shared_ptr<Buffer> after = on_gpu(4);
  device().upload(pinned({8}), after);
  for (const auto& buffer : {before, after}) {
    EXPECT_THAT(buffer->ready().wait(), StatusIs(absl::StatusCode::kUnavailable));
  }
  EXPECT_THAT(device().stream().sync(), StatusIs(absl::StatusCode::kUnavailable));
  api_->release();
}

// Threads that call CUDA set their device first, a program's that drops the last tensor too: else
// they make a context on GPU 0.
TEST_F(CudaDeviceTest, EveryThreadSetsItsDevice) {
  std::thread([&] {
    const auto two_gpus = FakeCuda::create({.num_gpus = 2});
    std::unique_ptr<CudaDevice> device;
    std::shared_ptr<const Buffer> last;
    std::thread([&] {
      device = *CudaDevice::create(two_gpus, 1, nullptr);
      const auto buffer = Buffer::deferred(device->memory(), 4);
      device->upload(*Buffer::allocate(device->pinned(), 4), buffer);
      last = device->download(buffer);
    }).join();
    EXPECT_THAT(last->ready().wait(), IsOk());
    EXPECT_THAT(device->queue().wait_done(absl::InfiniteFuture()), IsOk());
    std::thread([&] { device = nullptr; }).join();
    std::thread([&] { last = nullptr; }).join();
    EXPECT_THAT(two_gpus->misuses(), IsEmpty());
    EXPECT_EQ(two_gpus->allocated_bytes(), 0u);
  }).join();
}

TEST_F(CudaDeviceTest, DevicesOnOneGpuAreOrderedByEvents) {
  const std::unique_ptr<CudaDevice> second = *CudaDevice::create(api_, 0, nullptr);
  const std::shared_ptr<Buffer> from = on_gpu(4 << 10);
  const std::shared_ptr<Buffer> to = Buffer::deferred(second->memory(), 4 << 10);
  device().upload(pinned(std::vector<int32_t>(1024, 3)), from);
  ASSERT_THAT(from->issued().wait(), IsOk());
  const Event event = *device().queue().record();
  second->stream().enqueue("pull", [&] {
    Status status = second->queue().wait_for(event);
    status.Update(to->take_memory());
    status.Update(second->copy_bytes(to->mutable_data(), from->data(), 4 << 10));
    second->finish(to, status);
    return status;
  });
  const std::shared_ptr<const Buffer> back = second->download(to);
  ASSERT_THAT(back->ready().wait(), IsOk());
  EXPECT_EQ(values(*back), std::vector<int32_t>(1024, 3));
}

TEST_F(CudaDeviceTest, AStoppedStreamRunsTasksAtOnce) {
  device().stream().stop();
  const std::shared_ptr<Buffer> buffer = on_gpu(4);
  device().upload(pinned({7}), buffer);
  EXPECT_TRUE(buffer->ready().done());
  EXPECT_THAT(buffer->ready().status(), IsOk());
}

}  // namespace
}  // namespace tessera::cuda
