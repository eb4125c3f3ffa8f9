// SPDX-License-Identifier: Apache-2.0
//
// The misuses that the fake reports, and the faults that it puts into calls.
#include "device/cuda/fake/fake_cuda.h"

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <ostream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/deadline.h"
#include "tests/support/matchers.h"

namespace tessera::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::IsOkAndHolds;
using testing::StatusIs;

constexpr uint64_t kBytes = 4096;

// Two GPUs, a stream and memory of each, and pinned memory.
struct Rig {
  std::shared_ptr<FakeCuda> api = FakeCuda::create({.num_gpus = 2});
  StreamHandle streams[2];
  EventHandle events[2];
  std::byte* memory[2];
  std::byte* pinned;

  Rig() {
    for (int gpu = 1; gpu >= 0; --gpu) {
      api->set_device(gpu).IgnoreError();
      api->load_kernels().IgnoreError();
      streams[gpu] = *api->create_stream();
      events[gpu] = *api->create_event();
      memory[gpu] = *api->allocate(kBytes);
    }
    pinned = *api->allocate_pinned(kBytes);
  }
};

Fill fill_of(std::byte* out, uint64_t num_bytes) {
  Fill fill;
  fill.out = out;
  fill.num_bytes = num_bytes;
  return fill;
}

struct MisuseCase {
  const char* name;
  std::function<Status(Rig&)> body;
  const char* message;
};
void PrintTo(const MisuseCase& c, std::ostream* out) { *out << c.name; }

const MisuseCase kMisuses[] = {
    {"pageable_memory",
     [](Rig& rig) {
       std::byte local[16];
       return rig.api->copy(rig.memory[0], local, 16, rig.streams[0]);
     },
     "copy: memory that CUDA does not know"},
    {"beyond_the_end",
     [](Rig& rig) { return rig.api->copy(rig.memory[0], rig.pinned, kBytes + 1, rig.streams[0]); },
     "copy: bytes beyond the end of the memory"},
    {"freed_memory",
     [](Rig& rig) {
       rig.api->free(rig.memory[0]).IgnoreError();
       return rig.api->copy(rig.memory[0], rig.pinned, 16, rig.streams[0]);
     },
     "copy: memory that CUDA does not know"},
    {"freed_twice",
     [](Rig& rig) {
       rig.api->free(rig.memory[0]).IgnoreError();
       return rig.api->free(rig.memory[0]);
     },
     "free: memory that is not allocated, or no longer"},
    {"freed_as_what_it_is_not", [](Rig& rig) { return rig.api->free(rig.pinned); },
     "free: memory that is not allocated, or no longer"},
    {"destroyed_stream",
     [](Rig& rig) {
       rig.api->destroy_stream(rig.streams[0]).IgnoreError();
       return rig.api->copy(rig.memory[0], rig.pinned, 16, rig.streams[0]);
     },
     "copy: a stream that is not there, or no longer"},
    {"destroyed_event",
     [](Rig& rig) {
       rig.api->destroy_event(rig.events[0]).IgnoreError();
       return rig.api->record_event(rig.events[0], rig.streams[0]);
     },
     "record_event: an event that is not there, or no longer"},
    {"event_of_another_gpu",
     [](Rig& rig) { return rig.api->record_event(rig.events[1], rig.streams[0]); },
     "record_event: an event of GPU 1 on a stream of GPU 0"},
    {"event_never_recorded",
     [](Rig& rig) { return rig.api->wait_event(rig.streams[0], rig.events[0]); },
     "wait_event: an event that was never recorded"},
    {"query_never_recorded", [](Rig& rig) { return rig.api->query_event(rig.events[0]).status(); },
     "query_event: an event that was never recorded"},
    {"another_gpu_is_current",
     [](Rig& rig) { return rig.api->launch(fill_of(rig.memory[1], 16), rig.streams[1]); },
     "launch: a stream of GPU 1 while GPU 0 is current"},
    {"memory_of_another_gpu",
     [](Rig& rig) { return rig.api->launch(fill_of(rig.memory[1], 16), rig.streams[0]); },
     "launch: memory of GPU 1 from GPU 0 without peer access"},
    {"kernel_of_nothing",
     [](Rig& rig) { return rig.api->launch(fill_of(rig.memory[0], 0), rig.streams[0]); },
     "launch: a fill of no bytes"},
    {"misaligned_vectors",
     [](Rig& rig) { return rig.api->launch(fill_of(rig.memory[0] + 4, 16), rig.streams[0]); },
     "launch: a fill of memory that is not aligned"},
    {"no_such_gpu", [](Rig& rig) { return rig.api->set_device(2); }, "set_device: GPU 2 of 2"},
};

class MisuseTest : public ::testing::TestWithParam<MisuseCase> {};

TEST_P(MisuseTest, IsKeptAndRefused) {
  const testing::TestDeadline deadline(absl::Seconds(30), GetParam().name);
  Rig rig;
  EXPECT_THAT(GetParam().body(rig),
              StatusIs(absl::StatusCode::kInternal, HasSubstr(GetParam().message)));
  EXPECT_THAT(rig.api->misuses(), ElementsAre(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(Rows, MisuseTest, ::testing::ValuesIn(kMisuses),
                         [](const auto& info) { return info.param.name; });

TEST(FakeCudaTest, FreeingWhatIsInFlightIsAMisuse) {
  const testing::TestDeadline deadline(absl::Seconds(30), "free in flight");
  Rig rig;
  rig.api->hold();
  ASSERT_THAT(rig.api->copy(rig.memory[0], rig.pinned, kBytes, rig.streams[0]), IsOk());
  std::thread releases([&] {
    while (rig.api->misuses().empty()) std::this_thread::yield();
    rig.api->release();
  });
  // As in CUDA it waits for the GPU before the memory goes.
  EXPECT_THAT(rig.api->free(rig.memory[0]), StatusIs(absl::StatusCode::kInternal));
  releases.join();
  EXPECT_THAT(rig.api->misuses(), ElementsAre("free: memory that is in flight"));
}

// A context of GPU 0 is made for it, which CUDA does without a word.
TEST(FakeCudaTest, AThreadWithoutADeviceIsAMisuse) {
  Rig rig;
  std::thread([&] {
    EXPECT_THAT(rig.api->device_count(), IsOk());
    EXPECT_THAT(rig.api->record_event(rig.events[1], rig.streams[1]), IsOk());
    EXPECT_THAT(rig.api->set_device(1), IsOk());
    EXPECT_THAT(rig.api->destroy_event(rig.events[1]), IsOk());
  }).join();
  EXPECT_THAT(rig.api->misuses(), ElementsAre("record_event: a thread that has set no device"));
}

TEST(FakeCudaTest, KernelsAreLoadedBeforeTheyRun) {
  const auto api = FakeCuda::create();
  ASSERT_THAT(api->set_device(0), IsOk());
  TESSERA_ASSERT_OK_AND_ASSIGN(const StreamHandle stream, api->create_stream());
  TESSERA_ASSERT_OK_AND_ASSIGN(std::byte* const memory, api->allocate(16));
  EXPECT_THAT(api->launch(fill_of(memory, 16), stream),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("kernels of GPU 0 are not loaded")));
  EXPECT_THAT(api->load_kernels(), IsOk());
  EXPECT_THAT(api->launch(fill_of(memory, 16), stream), IsOk());
}

// As cudaMalloc() and cudaFree() do: work of a peer that waits for the caller is a deadlock.
TEST(FakeCudaTest, AllocatingAndFreeingWaitForTheGpuAndItsPeers) {
  const testing::TestDeadline deadline(absl::Seconds(60), "waits");
  using Call = std::function<void(Rig&)>;
  const std::pair<const char*, Call> calls[] = {
      {"free", [](Rig& rig) { EXPECT_THAT(rig.api->free(rig.memory[0]), IsOk()); }},
      {"free_pinned", [](Rig& rig) { EXPECT_THAT(rig.api->free_pinned(rig.pinned), IsOk()); }},
      {"allocate", [](Rig& rig) { EXPECT_THAT(rig.api->allocate(16), IsOk()); }},
      {"allocate_pinned", [](Rig& rig) { EXPECT_THAT(rig.api->allocate_pinned(16), IsOk()); }},
  };
  for (const int busy : {0, 1}) {
    for (const auto& [name, call] : calls) {
      SCOPED_TRACE(absl::StrCat(name, " beside GPU ", busy));
      Rig rig;
      ASSERT_THAT(rig.api->set_device(0), IsOk());
      ASSERT_THAT(rig.api->enable_peer_access(1), IsOk());
      ASSERT_THAT(rig.api->set_device(busy), IsOk());
      std::promise<void> may_end;
      std::atomic<bool> has_ended{false};
      const auto work = [&, future = may_end.get_future().share()] {
        future.wait();
        has_ended = true;
      };
      ASSERT_THAT(rig.api->enqueue_work("work", {}, work, rig.streams[busy]), IsOk());
      const int before = rig.api->num_calls(name);
      std::thread caller([&, call = call] {
        EXPECT_THAT(rig.api->set_device(0), IsOk());
        call(rig);
        EXPECT_TRUE(has_ended);
      });
      while (rig.api->num_calls(name) == before) std::this_thread::yield();
      may_end.set_value();
      caller.join();
      EXPECT_THAT(rig.api->misuses(), IsEmpty());
    }
  }
}

// Where streams share a hardware queue, what waits at its head for its own stream holds up others.
TEST(FakeCudaTest, StreamsTakeHardwareQueuesInTurn) {
  const testing::TestDeadline deadline(absl::Seconds(30), "hardware queues");
  for (const int num_queues : {1, 2}) {
    const auto api = FakeCuda::create({.num_queues = num_queues});
    ASSERT_THAT(api->set_device(0), IsOk());
    const StreamHandle first = *api->create_stream();
    const StreamHandle second = *api->create_stream();
    const EventHandle event = *api->create_event();
    std::promise<void> gate;
    std::promise<void> begun;
    const auto stand_still = [&begun, opened = gate.get_future().share()] {
      begun.set_value();
      opened.wait();
    };
    ASSERT_THAT(api->enqueue_work("gate", {}, stand_still, first), IsOk());
    ASSERT_THAT(api->enqueue_work(
                    "next", {}, [] {}, first),
                IsOk());
    ASSERT_THAT(api->record_event(event, second), IsOk());
    begun.get_future().wait();
    if (num_queues == 2) {
      while (!*api->query_event(event)) std::this_thread::yield();
    }
    EXPECT_THAT(api->query_event(event), IsOkAndHolds(num_queues == 2));
    gate.set_value();
    while (!*api->query_event(event)) std::this_thread::yield();
  }
}

TEST(FakeCudaTest, AContextIsMadeWhereADeviceIsSet) {
  const auto api = FakeCuda::create({.num_gpus = 3});
  std::thread([&] {
    EXPECT_THAT(api->device_count(), IsOk());
    EXPECT_THAT(api->bus_id(1), IsOk());
    EXPECT_THAT(api->contexts(), IsEmpty());
    EXPECT_THAT(api->set_device(2), IsOk());
    EXPECT_THAT(api->contexts(), ElementsAre(2));
  }).join();
  // A thread that has set none works on GPU 0.
  std::thread([&] { EXPECT_THAT(api->create_event(), IsOk()); }).join();
  EXPECT_THAT(api->contexts(), ElementsAre(0, 2));
}

TEST(FakeCudaTest, PeerAccessLetsKernelsReachMemory) {
  Rig rig;
  EXPECT_THAT(rig.api->enable_peer_access(1), IsOk());
  EXPECT_THAT(rig.api->launch(fill_of(rig.memory[1], 16), rig.streams[0]), IsOk());
  EXPECT_THAT(rig.api->misuses(), IsEmpty());
}

TEST(FakeCudaTest, NothingHappensWhileStreamsAreHeld) {
  const testing::TestDeadline deadline(absl::Seconds(30), "held streams");
  Rig rig;
  rig.api->hold();
  Fill fill = fill_of(rig.memory[0], 16);
  fill.pattern[0] = 7;
  ASSERT_THAT(rig.api->launch(fill, rig.streams[0]), IsOk());
  ASSERT_THAT(rig.api->copy(rig.pinned, rig.memory[0], 16, rig.streams[0]), IsOk());
  ASSERT_THAT(rig.api->record_event(rig.events[0], rig.streams[0]), IsOk());
  EXPECT_THAT(rig.api->query_event(rig.events[0]), IsOkAndHolds(false));
  EXPECT_EQ(rig.pinned[0], std::byte{0xcd});
  rig.api->release();
  while (!*rig.api->query_event(rig.events[0])) std::this_thread::yield();
  EXPECT_EQ(rig.pinned[0], std::byte{7});
  EXPECT_THAT(rig.api->misuses(), IsEmpty());
}

TEST(FakeCudaTest, FaultsComeAtTheCallTheyAreFor) {
  Rig rig;
  rig.api->fail("copy", 2, absl::UnavailableError("second copy"));
  const auto copy = [&] { return rig.api->copy(rig.memory[0], rig.pinned, 16, rig.streams[0]); };
  EXPECT_THAT(copy(), IsOk());
  EXPECT_THAT(copy(), StatusIs(absl::StatusCode::kUnavailable, "second copy"));
  EXPECT_THAT(copy(), IsOk());
  EXPECT_EQ(rig.api->num_calls("copy"), 3);
  rig.api->break_gpu(0, absl::UnavailableError("illegal address"));
  EXPECT_THAT(copy(), StatusIs(absl::StatusCode::kUnavailable, "illegal address"));
  EXPECT_THAT(rig.api->allocate(16), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(rig.api->misuses(), IsEmpty());
}

TEST(FakeCudaTest, MemoryOfAGpuComesToAnEnd) {
  const auto api = FakeCuda::create({.gpu_bytes = 8192});
  ASSERT_THAT(api->set_device(0), IsOk());
  EXPECT_THAT(api->allocate(4096), IsOk());
  EXPECT_THAT(api->allocate(8192), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(api->allocate(4096), IsOk());
  EXPECT_EQ(api->allocated_bytes(), 8192u);
}

}  // namespace
}  // namespace tessera::cuda
