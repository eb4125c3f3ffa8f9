// SPDX-License-Identifier: Apache-2.0
//
// Memory that NCCL uses directly, on the fakes of CUDA and NCCL: what is registered when, which
// members do without, and that slabs and communicators outlive each other as they should. That no
// rank has registered memory where another has not is found by the fake.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "collectives/collective.h"
#include "collectives/nccl/slab_source.h"
#include "collectives/nccl/testing/three_clients.h"
#include "collectives/testing/group_access.h"
#include "device/buffer.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera::nccl {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

// Memory is of the devices' pools.
class RegistrationTest : public ThreeClientsTest {
 protected:
  static constexpr int64_t kSmall = 1000;
  static constexpr int64_t kLarge = int64_t{1} << 20;  // beyond the first slab
  using Buffers = std::vector<std::shared_ptr<Buffer>>;

  void TearDown() override {
    ThreeClientsTest::TearDown();
    EXPECT_EQ(nccl_->num_registrations(), 0);
  }

  // A sum over the devices of `count` terms each, device d's are d + 1; waits for it. Memory is
  // taken now, and kept by the caller.
  Status sum(int64_t count, Buffers* kept, const std::vector<int>& devices = {0, 1, 2}) {
    std::vector<Work> works;
    float want = 0;
    const size_t first = kept->size();
    for (const int device : devices) {
      want += static_cast<float>(device + 1);
      for (int k = 0; k < 2; ++k) kept->push_back(take(device, count));
      TESSERA_RETURN_IF_ERROR(
          fill(device, static_cast<float>(device + 1), kept->end()[-2].get(), count));
      TESSERA_ASSIGN_OR_RETURN(const Group group, job_->raw_group(device, devices));
      works.push_back(start_sum(group, *kept->end()[-2], *kept->end()[-1], count));
    }
    Status first_error;
    for (Work& work : works) first_error.Update(work.await());
    TESSERA_RETURN_IF_ERROR(first_error);
    for (size_t k = 0; k < devices.size(); ++k) {
      TESSERA_RETURN_IF_ERROR(expect_filled(devices[k], *(*kept)[first + 2 * k + 1], want, count));
    }
    return absl::OkStatus();
  }
  Status sum(int64_t count) {
    Buffers kept;
    return sum(count, &kept);
  }

  // Sums of all devices, under way.
  std::vector<Work> begin(const Buffers& ins, const Buffers& outs) const {
    std::vector<Work> works;
    for (int device = 0; device < kMembers; ++device) {
      const StatusOr<Group> group = job_->raw_group(device, {0, 1, 2});
      works.push_back(start_sum(*group, *ins[device], *outs[device], kSmall));
    }
    return works;
  }

  std::shared_ptr<Buffer> take(int device, int64_t count) const {
    return *Buffer::allocate(job_->device(device).memory(), count * 4);
  }
  static Work start_sum(const Group& group, const Buffer& in, Buffer& out, int64_t count) {
    return internal::GroupAccess::start(
        group, {.kind = OpKind::kAllReduce, .dtype = DType::kFloat32, .count = count},
        {in.data(), count, out.mutable_data(), count});
  }
  // A task of the device's stream.
  Status run_on(int device, std::function<Status(cuda::CudaDevice&)> give) const {
    cuda::CudaDevice& gpu = job_->device(device);
    Status result;
    gpu.stream().enqueue("a test", [&]() -> Status {
      result = give(gpu);
      return absl::OkStatus();
    });
    TESSERA_RETURN_IF_ERROR(gpu.stream().sync());
    return result;
  }
  Status fill(int device, float value, Buffer* buffer, int64_t count) const {
    return run_on(device, [=](cuda::CudaDevice& gpu) {
      return gpu.fill(DType::kFloat32, &value, buffer->mutable_data(), count);
    });
  }
  Status expect_filled(int device, const Buffer& buffer, float want, int64_t count) const {
    cuda::CudaDevice& gpu = job_->device(device);
    TESSERA_ASSIGN_OR_RETURN(const auto pinned, Buffer::allocate(gpu.pinned(), count * 4));
    TESSERA_RETURN_IF_ERROR(run_on(device, [&](cuda::CudaDevice& own) {
      return own.copy_bytes(pinned->mutable_data(), buffer.data(), count * 4);
    }));
    const auto* values = reinterpret_cast<const float*>(pinned->data());
    for (int64_t i = 0; i < count; ++i) {
      if (values[i] == want) continue;
      return absl::InternalError(absl::StrCat("element ", i, " is ", values[i], ", not ", want));
    }
    return absl::OkStatus();
  }
};

// The first operation makes the communicator, and the second one registers what the pools have.
TEST_F(RegistrationTest, SlabsAreRegisteredOnce) {
  start();
  ASSERT_THAT(sum(kSmall), IsOk());
  EXPECT_EQ(nccl_->num_registrations(), 0);
  EXPECT_EQ(nccl_->num_registered_operations(), 0);
  for (int i = 0; i < 3; ++i) ASSERT_THAT(sum(kSmall), IsOk());
  EXPECT_EQ(nccl_->num_registrations(), kMembers);
  EXPECT_EQ(calls("comm_register"), kMembers);
  // Each of the three was two operations on each GPU.
  EXPECT_EQ(nccl_->num_registered_operations(), 3 * 2 * kMembers);
}

// Slabs that come later are registered before they are used, those for packing among them.
TEST_F(RegistrationTest, SoAreThoseThatComeLater) {
  start();
  for (const int64_t count : {kSmall, kSmall, kLarge, 4 * kLarge}) {
    const int before = nccl_->num_registered_operations();
    ASSERT_THAT(sum(count), IsOk());
    if (nccl_->num_registrations() == 0) continue;
    EXPECT_EQ(nccl_->num_registered_operations(), before + 2 * kMembers) << count;
  }
  size_t num_slabs = 0;
  for (int d = 0; d < kMembers; ++d) num_slabs += job_->device(d).slabs()->slabs().size();
  EXPECT_GT(num_slabs, 3u * kMembers - 1);
  EXPECT_EQ(nccl_->num_registrations(), static_cast<int>(num_slabs));
}

// Each communicator has registrations of its own.
TEST_F(RegistrationTest, EachCommunicatorRegisters) {
  start();
  Buffers kept;
  for (int i = 0; i < 2; ++i) {
    ASSERT_THAT(sum(kSmall), IsOk());
    ASSERT_THAT(sum(kSmall, &kept, {0, 2}), IsOk());
  }
  EXPECT_EQ(nccl_->num_registrations(), 5);
}

struct Refusal {
  const char* name;
  int nth;
  StatusOr<RegisterHandle> answer;
};

// Where NCCL does not take the memory of one, all do without, from then on, and nothing fails.
TEST_F(RegistrationTest, WhatNcclRefusesItCopies) {
  const Refusal refusals[] = {
      {"at once", 1, absl::InternalError("ncclCommRegister: unhandled cuda error")},
      {"at once, politely", 1, nullptr},
      {"the second", 2, nullptr},
      {"that of another slab", 4, absl::InternalError("no more")},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.name);
    start();
    nccl_->refuse_to_register(refusal.nth, refusal.answer);
    for (const int64_t count : {kSmall, kSmall, kSmall, kLarge, kSmall}) {
      ASSERT_THAT(sum(count), IsOk());
    }
    EXPECT_EQ(nccl_->num_registrations(), 0);
    const int before = nccl_->num_registered_operations();
    ASSERT_THAT(sum(kSmall), IsOk());
    EXPECT_EQ(nccl_->num_registered_operations(), before);
    job_ = nullptr;
    nccl_->refuse_to_register(1 << 30, nullptr);
  }
}

// Memory that is not of the pools ends it as well, for its group alone.
TEST_F(RegistrationTest, OtherMemoryIsNotMixedWithIt) {
  start();
  Buffers kept;
  for (int i = 0; i < 2; ++i) {
    ASSERT_THAT(sum(kSmall), IsOk());
    ASSERT_THAT(sum(kSmall, &kept, {0, 1}), IsOk());
  }
  EXPECT_EQ(nccl_->num_registrations(), 5);
  Buffers ins, outs;
  const auto foreign = std::make_shared<cuda::SlabPool>(cuda_, 1, cuda::SlabPool::Kind::kGpu);
  for (int device = 0; device < kMembers; ++device) {
    ins.push_back(take(device, kSmall));
    outs.push_back(device == 1 ? *Buffer::allocate(foreign, kSmall * 4) : take(device, kSmall));
    ASSERT_THAT(fill(device, 2, ins[device].get(), kSmall), IsOk());
  }
  for (Work& work : begin(ins, outs)) EXPECT_THAT(work.await(), IsOk());
  EXPECT_THAT(expect_filled(1, *outs[1], 6, kSmall), IsOk());
  EXPECT_EQ(nccl_->num_registrations(), 2);
  ASSERT_THAT(sum(kSmall), IsOk());
  EXPECT_EQ(nccl_->num_registrations(), 2);
}

// An input that no member reads may be any memory: NCCL does not see it.
TEST_F(RegistrationTest, UnusedInputsMayBeAnyMemory) {
  start();
  for (int i = 0; i < 2; ++i) ASSERT_THAT(sum(kSmall), IsOk());
  std::vector<float> elsewhere(kSmall);
  Buffers kept;
  std::vector<Work> works;
  for (int device = 0; device < kMembers; ++device) {
    for (int k = 0; k < 2; ++k) kept.push_back(take(device, kSmall));
    ASSERT_THAT(fill(device, 3, kept[2 * device].get(), kSmall), IsOk());
    const std::byte* const in =
        device == 0 ? kept[0]->data() : reinterpret_cast<const std::byte*>(elsewhere.data());
    works.push_back(internal::GroupAccess::start(
        *job_->raw_group(device, {0, 1, 2}),
        {.kind = OpKind::kBroadcast, .dtype = DType::kFloat32, .count = kSmall},
        {in, kSmall, kept[2 * device + 1]->mutable_data(), kSmall}));
  }
  for (Work& work : works) EXPECT_THAT(work.await(), IsOk());
  EXPECT_THAT(expect_filled(2, *kept[5], 3, kSmall), IsOk());
  EXPECT_EQ(nccl_->num_registrations(), kMembers);
}

// In place on some members only: NCCL does not look for that memory, so none is used directly.
TEST_F(RegistrationTest, SumsInPlaceOnSomeMembersAreNotMixedWithIt) {
  start({.collective_timeout = absl::Seconds(30), .sums = Sums::kNccl});
  for (int i = 0; i < 2; ++i) ASSERT_THAT(sum(kSmall), IsOk());
  EXPECT_EQ(nccl_->num_registrations(), kMembers);
  Buffers ins, outs;
  for (int device = 0; device < kMembers; ++device) {
    ins.push_back(take(device, kSmall));
    outs.push_back(device == 1 ? ins.back() : take(device, kSmall));
    ASSERT_THAT(fill(device, 2, ins[device].get(), kSmall), IsOk());
  }
  for (Work& work : begin(ins, outs)) EXPECT_THAT(work.await(), IsOk());
  for (int device = 0; device < kMembers; ++device) {
    EXPECT_THAT(expect_filled(device, *outs[device], 6, kSmall), IsOk());
  }
  EXPECT_EQ(nccl_->num_registrations(), 0);
}

// It is off unless all clients ask for it.
TEST_F(RegistrationTest, NothingIsRegisteredUnasked) {
  start({.collective_timeout = absl::Seconds(30), .registers_memory = false});
  for (int i = 0; i < 3; ++i) ASSERT_THAT(sum(kSmall), IsOk());
  EXPECT_EQ(calls("comm_register"), 0);
}

TEST(AllocatorTest, RefusesWhatCanDeadlock) {
  EXPECT_THAT(check_allocator(8), IsOk());
  setenv("NCCL_CUMEM_ENABLE", "0", 1);
  EXPECT_THAT(check_allocator(1), IsOk());
  EXPECT_THAT(check_allocator(2),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("NCCL_CUMEM_ENABLE=0 with 2 GPUs in a client: ")));
  setenv("NCCL_CUMEM_ENABLE", "1", 1);
  EXPECT_THAT(check_allocator(2), IsOk());
  unsetenv("NCCL_CUMEM_ENABLE");
}

// Memory that is deregistered may be in flight: the GPU finishes first.
TEST_F(RegistrationTest, NothingIsDeregisteredInFlight) {
  start();
  for (int i = 0; i < 2; ++i) ASSERT_THAT(sum(kSmall), IsOk());
  Buffers ins, outs, others;
  const auto foreign = std::make_shared<cuda::SlabPool>(cuda_, 0, cuda::SlabPool::Kind::kGpu);
  for (int device = 0; device < kMembers; ++device) {
    ins.push_back(take(device, kSmall));
    outs.push_back(take(device, kSmall));
    others.push_back(device == 0 ? *Buffer::allocate(foreign, kSmall * 4) : take(device, kSmall));
    ASSERT_THAT(fill(device, 2, ins[device].get(), kSmall), IsOk());
  }
  close_gate(2);
  std::vector<Work> first = begin(ins, outs);
  std::vector<Work> second = begin(ins, others);
  absl::SleepFor(absl::Milliseconds(100));  // sleep: time for a deregistration that is too early
  EXPECT_EQ(calls("comm_deregister"), 0);
  open_gate();
  for (Work& work : first) EXPECT_THAT(work.await(), IsOk());
  for (Work& work : second) EXPECT_THAT(work.await(), IsOk());
  EXPECT_EQ(calls("comm_deregister"), kMembers);
  EXPECT_THAT(expect_filled(0, *others[0], 6, kSmall), IsOk());
}

// A tensor outlives the job: its slab goes with it, long after the communicators.
TEST_F(RegistrationTest, SlabsOutliveCommunicators) {
  start();
  Buffers kept;
  for (int i = 0; i < 2; ++i) ASSERT_THAT(sum(kSmall, &kept), IsOk());
  job_ = nullptr;
  EXPECT_EQ(nccl_->num_communicators(), 0);
  EXPECT_EQ(nccl_->num_allocations(), kMembers);
  kept.clear();
  EXPECT_EQ(nccl_->num_allocations(), 0);
}

// After a failure the next communicator registers anew.
TEST_F(RegistrationTest, TheNextCommunicatorRegistersAnew) {
  start();
  for (int i = 0; i < 2; ++i) ASSERT_THAT(sum(kSmall), IsOk());
  nccl_->break_link(2, absl::UnavailableError("ncclRemoteError: a peer is gone"));
  EXPECT_THAT(sum(kSmall), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("ncclRemoteError")));
  for (int d = 0; d < kMembers; ++d) job_->device(d).stream().sync().IgnoreError();
  for (int i = 0; i < 2; ++i) ASSERT_THAT(sum(kSmall), IsOk());
  while (nccl_->num_communicators() > kMembers) std::this_thread::yield();
  EXPECT_EQ(nccl_->num_registrations(), kMembers);
}

// A communicator that NCCL never ends keeps its slabs: memory that a kernel may still read is not
// freed.
TEST_F(RegistrationTest, CommunicatorsThatNeverEndKeepSlabs) {
  start(
      {.collective_timeout = absl::Seconds(30),
       .watch = {.revoke_limit = absl::Milliseconds(100), .abort_limit = absl::Milliseconds(200)}});
  for (int i = 0; i < 2; ++i) ASSERT_THAT(sum(kSmall), IsOk());
  nccl_->hang_aborts();
  nccl_->break_link(1, absl::UnavailableError("ncclRemoteError: a peer is gone"));
  EXPECT_FALSE(sum(kSmall).ok());
  job_ = nullptr;
  EXPECT_EQ(nccl_->num_communicators(), kMembers);
  EXPECT_EQ(nccl_->num_allocations(), kMembers);
  nccl_->release_aborts();
  while (nccl_->num_allocations() > 0) std::this_thread::yield();
  EXPECT_EQ(nccl_->num_communicators(), 0);
}

}  // namespace
}  // namespace tessera::nccl
