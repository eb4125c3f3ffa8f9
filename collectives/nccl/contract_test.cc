// SPDX-License-Identifier: Apache-2.0
//
// The fake keeps the contract of nccl::Api and reports misuse, and the real library has all the
// names that are loaded. Where there are GPUs, NCCL keeps the contract too.
#include "collectives/nccl/testing/contract.h"

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "collectives/nccl/errors.h"
#include "collectives/nccl/fake/fake_nccl.h"
#include "collectives/nccl/open_api.h"
#include "device/cuda/fake/fake_cuda.h"
#include "device/cuda/open_api.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/deadline.h"
#include "tests/support/matchers.h"

namespace tessera::nccl {
namespace {

using cuda::FakeCuda;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::StatusIs;

TEST(OpenApiTest, EveryNameIsInTheLibrary) {
  // The library that the build found; on another machine its own, if it has one.
  const char* const library = std::getenv("TESSERA_NCCL_LIBRARY");
  const auto api = library == nullptr ? open_api() : open_api(library);
  if (!api.ok() && library == nullptr) {
    EXPECT_THAT(api, StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("install")));
    return;
  }
  ASSERT_THAT(api, IsOk());
  // Works without a GPU.
  const StatusOr<UniqueId> first = (*api)->get_unique_id();
  const StatusOr<UniqueId> second = (*api)->get_unique_id();
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(second, IsOk());
  EXPECT_NE(*first, *second);
}

TEST(OpenApiTest, SaysWhatIsMissing) {
  EXPECT_THAT(open_api("libthere_is_none.so"),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("NCCL 2.28.7 or later")));
}

class ContractTest : public ::testing::TestWithParam<ContractCase> {};

TEST_P(ContractTest, HoldsOnTheFake) {
  const testing::TestDeadline deadline(absl::Seconds(60), GetParam().name);
  const auto cuda = FakeCuda::create({.num_gpus = GetParam().num_ranks, .most_yields = 3});
  const auto nccl = FakeNccl::create(cuda);
  EXPECT_THAT(GetParam().body(*cuda, *nccl), IsOk());
  EXPECT_THAT(cuda->misuses(), IsEmpty());
  EXPECT_THAT(nccl->misuses(), IsEmpty());
  EXPECT_EQ(nccl->num_communicators(), 0);
  EXPECT_EQ(nccl->num_allocations(), 0);
}

// As on a GPU: a call returns before its work is in the stream.
TEST_P(ContractTest, HoldsOnTheFakeWhereEachCallIsInProgress) {
  const testing::TestDeadline deadline(absl::Seconds(60), GetParam().name);
  const auto cuda = FakeCuda::create({.num_gpus = GetParam().num_ranks, .most_yields = 3});
  const auto nccl = FakeNccl::create(cuda);
  nccl->stall("group_end", 1 << 30, 1);
  EXPECT_THAT(GetParam().body(*cuda, *nccl), IsOk());
  EXPECT_THAT(cuda->misuses(), IsEmpty());
  EXPECT_THAT(nccl->misuses(), IsEmpty());
}

TEST_P(ContractTest, HoldsOnOneGpuOfTheFake) {
  const testing::TestDeadline deadline(absl::Seconds(60), GetParam().name);
  const auto cuda = FakeCuda::create({.most_yields = 3});
  const auto nccl = FakeNccl::create(cuda, {.shares_gpus = true});
  EXPECT_THAT(GetParam().body(*cuda, *nccl, /*shares_gpu=*/true), IsOk());
  EXPECT_THAT(cuda->misuses(), IsEmpty());
  EXPECT_THAT(nccl->misuses(), IsEmpty());
}

TEST_P(ContractTest, HoldsOnGpus) {
  const StatusOr<std::shared_ptr<cuda::Api>> cuda = cuda::open_api();
  if (!cuda.ok()) GTEST_SKIP() << cuda.status();
  const StatusOr<int> num_gpus = (*cuda)->device_count();
  if (*num_gpus < GetParam().num_ranks) GTEST_SKIP() << *num_gpus << " GPUs";
  const StatusOr<std::shared_ptr<Api>> nccl = open_api();
  if (!nccl.ok()) GTEST_SKIP() << nccl.status();
  const testing::TestDeadline deadline(absl::Seconds(120), GetParam().name);
  EXPECT_THAT(GetParam().body(**cuda, **nccl), IsOk());
}

INSTANTIATE_TEST_SUITE_P(Api, ContractTest, ::testing::ValuesIn(contract_cases()),
                         [](const auto& info) { return info.param.name; });

// Two ranks on two GPUs of the fake, made and used by one thread.
struct Pair {
  std::shared_ptr<FakeCuda> cuda = FakeCuda::create({.num_gpus = 2});
  std::shared_ptr<FakeNccl> nccl = FakeNccl::create(cuda);
  CommHandle comms[2] = {};
  StreamHandle streams[2] = {};
  std::byte* memory[2] = {};

  Pair() {
    const UniqueId id = *nccl->get_unique_id();
    for (int rank = 0; rank < 2; ++rank) {
      on(rank);
      comms[rank] = *nccl->comm_init_rank(2, id, rank);
      streams[rank] = *cuda->create_stream();
      memory[rank] = *cuda->allocate(4096);
    }
    for (const CommHandle comm : comms) {
      while (!*nccl->poll(comm)) std::this_thread::yield();
    }
  }
  // Ends both in one group: the end of one waits for all work of the GPU, which may belong to the
  // other.
  ~Pair() { abort({comms[0], comms[1]}); }
  void abort(const std::vector<CommHandle>& of) const {
    EXPECT_THAT(nccl->group_start(), IsOk());
    for (const CommHandle comm : of) nccl->comm_abort(comm).IgnoreError();
    EXPECT_THAT(nccl->group_end(), IsOk());
  }
  void on(int rank) const { EXPECT_THAT(cuda->set_device(rank), IsOk()); }
  Status send(int rank, uint64_t num_bytes, CommHandle comm) {
    on(rank);
    return nccl->send(memory[rank], num_bytes, 1 - rank, comm, streams[rank]);
  }
  Status recv(int rank, uint64_t num_bytes, CommHandle comm) {
    on(rank);
    return nccl->recv(memory[rank], num_bytes, 1 - rank, comm, streams[rank]);
  }
  // A collective of both ranks, each in a group, since one thread calls for both.
  void in_groups(const std::function<Status(int rank)>& call) {
    for (int rank = 0; rank < 2; ++rank) {
      on(rank);
      EXPECT_THAT(nccl->group_start(), IsOk());
      EXPECT_THAT(call(rank), IsOk());
      EXPECT_THAT(nccl->group_end(), IsOk());
    }
    for (int rank = 0; rank < 2; ++rank) drain(rank);
  }
  struct Sum {
    uint64_t count;
    DType dtype;
    ReduceOp op = ReduceOp::kSum;
  };
  void all_reduce(const Sum& first, const Sum& second) {
    in_groups([&](int rank) {
      const Sum& sum = rank == 0 ? first : second;
      return nccl->all_reduce(memory[rank], memory[rank], sum.count, sum.dtype, sum.op, comms[rank],
                              streams[rank]);
    });
  }
  void drain(int rank) const { EXPECT_THAT(cuda->destroy_stream(streams[rank]), IsOk()); }
};

struct MisuseCase {
  const char* name;
  const char* text;
  std::function<void(Pair&)> body;
};
void PrintTo(const MisuseCase& c, std::ostream* out) { *out << c.name; }

const MisuseCase kMisuses[] = {
    {"sizes_differ", "rank 0 has send/recv of 8 bytes, and rank 1 send/recv of 16",
     [](Pair& p) {
       EXPECT_THAT(p.send(0, 8, p.comms[0]), IsOk());
       EXPECT_THAT(p.recv(1, 16, p.comms[1]), IsOk());
       p.drain(0);
       p.drain(1);
     }},
    {"roots_differ", "rank 0 has broadcast from 0 of 8 bytes, and rank 1 send/recv",
     [](Pair& p) {
       p.on(0);
       EXPECT_THAT(p.nccl->group_start(), IsOk());
       EXPECT_THAT(p.nccl->broadcast(p.memory[0], p.memory[0], 8, 0, p.comms[0], p.streams[0]),
                   IsOk());
       EXPECT_THAT(p.nccl->group_end(), IsOk());
       EXPECT_THAT(p.recv(1, 8, p.comms[1]), IsOk());
       p.drain(0);
       p.drain(1);
     }},
    {"counts_of_a_reduction_differ",
     "rank 0 has all_reduce sum f32 of 16 bytes, and rank 1 all_reduce sum f32 of 32",
     [](Pair& p) {
       p.all_reduce({4, DType::kFloat32}, {8, DType::kFloat32});
     }},
    {"types_of_a_reduction_differ",
     "rank 0 has all_reduce sum f32 of 16 bytes, and rank 1 all_reduce sum i32 of 16",
     [](Pair& p) {
       p.all_reduce({4, DType::kFloat32}, {4, DType::kInt32});
     }},
    {"reductions_differ",
     "rank 0 has all_reduce sum f32 of 16 bytes, and rank 1 all_reduce max f32 of 16",
     [](Pair& p) {
       p.all_reduce({4, DType::kFloat32}, {4, DType::kFloat32, ReduceOp::kMax});
     }},
    {"roots_of_a_reduction_differ", "rank 0 has reduce sum u8 to 0 of 0 bytes, and rank 1 reduce",
     [](Pair& p) {
       p.in_groups([&](int rank) {
         return p.nccl->reduce(p.memory[rank], p.memory[rank], 4, DType::kUint8, ReduceOp::kSum,
                               rank, p.comms[rank], p.streams[rank]);
       });
     }},
    {"a_reduction_meets_a_collective",
     "rank 0 has reduce_scatter sum u8 of 4 bytes, and rank 1 all_gather of 4",
     [](Pair& p) {
       p.in_groups([&](int rank) {
         return rank == 0 ? p.nccl->reduce_scatter(p.memory[0], p.memory[0], 4, DType::kUint8,
                                                   ReduceOp::kSum, p.comms[0], p.streams[0])
                          : p.nccl->all_gather(p.memory[1], p.memory[1] + 64, 4, p.comms[1],
                                               p.streams[1]);
       });
     }},
    {"reduction_of_bool", "all_reduce: max of bool",
     [](Pair& p) {
       p.on(0);
       EXPECT_FALSE(p.nccl
                        ->all_reduce(p.memory[0], p.memory[0], 4, DType::kBool, ReduceOp::kMax,
                                     p.comms[0], p.streams[0])
                        .ok());
     }},
    {"average_of_integers", "reduce_scatter: avg of i32",
     [](Pair& p) {
       p.on(0);
       EXPECT_FALSE(p.nccl
                        ->reduce_scatter(p.memory[0], p.memory[0], 4, DType::kInt32, ReduceOp::kAvg,
                                         p.comms[0], p.streams[0])
                        .ok());
     }},
    {"used_after_revoke", "send: a communicator that was revoked",
     [](Pair& p) {
       EXPECT_THAT(p.nccl->comm_revoke(p.comms[0]), IsOk());
       EXPECT_FALSE(p.send(0, 8, p.comms[0]).ok());
     }},
    {"used_after_abort", "recv: a communicator that is not there, or no longer",
     [](Pair& p) {
       EXPECT_THAT(p.nccl->comm_abort(p.comms[1]), IsOk());
       EXPECT_FALSE(p.recv(1, 8, p.comms[1]).ok());
     }},
    {"wrong_thread", "send: a communicator that another thread made",
     [](Pair& p) { std::thread([&p] { EXPECT_FALSE(p.send(0, 8, p.comms[0]).ok()); }).join(); }},
    {"missing_group", "outside of a group while another one is under way",
     [](Pair& p) {
       EXPECT_THAT(p.send(0, 8, p.comms[0]), IsOk());
       EXPECT_FALSE(p.recv(0, 8, p.comms[0]).ok());
     }},
    {"several_ranks_of_a_thread", "a collective for one of several ranks of a thread",
     [](Pair& p) {
       p.on(0);
       EXPECT_FALSE(
           p.nccl->broadcast(p.memory[0], p.memory[0], 8, 0, p.comms[0], p.streams[0]).ok());
     }},
    {"revoked_while_it_is_made", "comm_revoke: the last call is in progress",
     [](Pair& p) {
       const UniqueId id = *p.nccl->get_unique_id();
       p.on(0);
       const CommHandle alone = *p.nccl->comm_init_rank(2, id, 0);
       EXPECT_FALSE(p.nccl->comm_revoke(alone).ok());
       EXPECT_THAT(p.nccl->comm_abort(alone), IsOk());
     }},
    {"revoked_with_a_call_in_progress", "comm_revoke: the last call is in progress",
     [](Pair& p) {
       p.nccl->stall("group_end", 1, 1000);
       p.on(0);
       EXPECT_THAT(p.nccl->group_start(), IsOk());
       EXPECT_THAT(p.send(0, 8, p.comms[0]), IsOk());
       EXPECT_THAT(p.nccl->group_end(), IsOk());
       EXPECT_FALSE(p.nccl->comm_revoke(p.comms[0]).ok());
     }},
    {"freed_as_memory_of_nccl", "mem_free: memory that is not of mem_alloc()",
     [](Pair& p) { EXPECT_FALSE(p.nccl->mem_free(p.memory[0]).ok()); }},
    {"freed_in_flight", "",
     [](Pair& p) {
       EXPECT_THAT(p.send(0, 8, p.comms[0]), IsOk());
       std::thread receiver([&p] {
         p.on(0);
         while (p.cuda->misuses().empty()) std::this_thread::yield();
         EXPECT_THAT(p.nccl->comm_revoke(p.comms[0]), IsOk());
       });
       EXPECT_FALSE(p.cuda->free(p.memory[0]).ok());
       receiver.join();
       EXPECT_THAT(p.cuda->misuses(),
                   ::testing::ElementsAre(HasSubstr("memory that is in flight")));
     }},
    {"destroyed_in_use", "comm_destroy: a communicator that was neither finalized nor revoked",
     [](Pair& p) { EXPECT_FALSE(p.nccl->comm_destroy(p.comms[0]).ok()); }},
    {"orders_differ", "GPUs 1 and 0 use their communicators in different orders",
     [](Pair& p) {
       const UniqueId id = *p.nccl->get_unique_id();
       CommHandle others[2];
       for (int rank = 0; rank < 2; ++rank) {
         p.on(rank);
         others[rank] = *p.nccl->comm_init_rank(2, id, rank);
       }
       for (const CommHandle other : others) {
         while (!*p.nccl->poll(other)) std::this_thread::yield();
       }
       EXPECT_THAT(p.send(0, 8, p.comms[0]), IsOk());
       EXPECT_THAT(p.send(0, 8, others[0]), IsOk());
       EXPECT_THAT(p.recv(1, 8, others[1]), IsOk());
       p.abort({others[0], others[1], p.comms[0], p.comms[1]});
     }},
};

class MisuseTest : public ::testing::TestWithParam<MisuseCase> {};

TEST_P(MisuseTest, IsReported) {
  const testing::TestDeadline deadline(absl::Seconds(30), GetParam().name);
  Pair pair;
  GetParam().body(pair);
  if (*GetParam().text == '\0') return;
  // Each of the two ends may find it.
  const std::vector<std::string> misuses = pair.nccl->misuses();
  EXPECT_THAT(misuses, ::testing::SizeIs(::testing::AllOf(::testing::Ge(1), ::testing::Le(2))));
  EXPECT_THAT(misuses, ::testing::Contains(HasSubstr(GetParam().text)));
}

INSTANTIATE_TEST_SUITE_P(Fake, MisuseTest, ::testing::ValuesIn(kMisuses),
                         [](const auto& info) { return info.param.name; });

// With earlier work in flight there is no better way.
TEST(FakeNcclTest, RevokesBehindWorkInFlight) {
  const testing::TestDeadline deadline(absl::Seconds(30), "revoke behind work");
  Pair p;
  EXPECT_THAT(p.send(0, 8, p.comms[0]), IsOk());
  p.nccl->stall("group_end", 1, 1000);
  EXPECT_THAT(p.nccl->group_start(), IsOk());
  EXPECT_THAT(p.send(0, 8, p.comms[0]), IsOk());
  EXPECT_THAT(p.nccl->group_end(), IsOk());
  EXPECT_THAT(p.nccl->comm_revoke(p.comms[0]), IsOk());
  p.drain(0);
  EXPECT_THAT(p.nccl->misuses(), IsEmpty());
}

TEST(FakeNcclTest, EndsOnAThreadWithoutADeviceAreMisuse) {
  Pair p;
  std::thread([&] { EXPECT_THAT(p.nccl->comm_abort(p.comms[0]), IsOk()); }).join();
  EXPECT_THAT(p.cuda->misuses(),
              ::testing::ElementsAre("comm_abort: a thread that has set no device"));
}

// Each rank that uses sockets takes its part of /dev/shm: a container's 64 MiB are enough for one.
TEST(FakeNcclTest, SharedMemoryOfTheHostRunsOut) {
  const auto cuda = FakeCuda::create();
  const auto nccl = FakeNccl::create(cuda, {.shares_gpus = true, .shm_bytes = 64 << 20});
  const UniqueId id = *nccl->get_unique_id();
  const auto make = [&](int rank) {
    EXPECT_THAT(cuda->set_device(0), IsOk());
    return *nccl->comm_init_rank(2, id, rank);
  };
  const CommHandle first = make(0);
  EXPECT_THAT(nccl->poll(first), testing::IsOkAndHolds(false));
  std::thread([&] {
    const CommHandle second = make(1);
    EXPECT_THAT(nccl->poll(second), StatusIs(absl::StatusCode::kResourceExhausted,
                                             HasSubstr("; /dev/shm is too small: each")));
    EXPECT_THAT(nccl->comm_abort(second), IsOk());
  }).join();
  EXPECT_THAT(nccl->comm_abort(first), IsOk());
}

TEST(ErrorsTest, SayWhatToDo) {
  using absl::StatusCode;
  EXPECT_THAT(error_of(StatusCode::kFailedPrecondition, "ncclCommInitRankConfig", "invalid usage",
                       "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000"),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("TESSERA_SHARE_GPUS=1")));
  EXPECT_THAT(error_of(StatusCode::kInternal, "NCCL", "unhandled system error",
                       "Error while creating shared memory segment /dev/shm/nccl-UL1RHn (size "
                       "33292), error: No space left on device (28)"),
              StatusIs(StatusCode::kResourceExhausted,
                       HasSubstr("mount -o remount,size=32G /dev/shm, or docker run --shm-size")));
  EXPECT_THAT(error_of(StatusCode::kUnavailable, "NCCL", "remote process exited", "socket closed"),
              StatusIs(StatusCode::kUnavailable, "NCCL: remote process exited: socket closed"));
}

TEST(FakeNcclTest, RefusesTwoRanksOnOneGpu) {
  const auto cuda = FakeCuda::create();
  ASSERT_THAT(cuda->set_device(0), IsOk());
  const auto nccl = FakeNccl::create(cuda);
  const UniqueId id = *nccl->get_unique_id();
  const StatusOr<CommHandle> first = nccl->comm_init_rank(2, id, 0);
  ASSERT_THAT(first, IsOk());
  EXPECT_THAT(nccl->comm_init_rank(2, id, 1),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("Duplicate GPU")));
  EXPECT_THAT(nccl->comm_abort(*first), IsOk());
}

}  // namespace
}  // namespace tessera::nccl
