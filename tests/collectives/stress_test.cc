// SPDX-License-Identifier: Apache-2.0
//
// Collectives in the long run: random programs, growth, many members and overlap with compute here;
// equal bits for every split of the devices over clients (collectives_bits_test.cc), and clients
// that are killed at any moment (collectives_kills_test.cc), in the same program.
//
//   stress_test [--seed=N] [--random_ops=N] [--growth_ops=N] [--meshes=N] [--shapes=N]
//                           [--calls=N] [--kills=N]
//                           [--slowest_call_ms=X] [--slowest_loss_ms=X]
//
// Without flags each proof is short, as CI runs it; tools/soak runs the long forms. Only the long
// forms compare times of the clock (the two --slowest flags).
#include "tests/collectives/stress.h"

#include <malloc.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "collectives/host/host_backend.h"
#include "collectives/testing/conformance.h"
#include "device/cpu/arena.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "dtensor/dtensor.h"
#include "dtensor/local_map.h"
#include "dtensor/relayout.h"
#include "dtensor/runtime.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/clients.h"
#include "tests/support/gate.h"
#include "tests/support/job_forms.h"
#include "tests/support/leaks.h"
#include "tests/support/matchers.h"
#include "tests/support/members.h"
#include "tests/support/sanitizers.h"
#include "tests/support/shared.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

using conformance::Member;
using conformance::RandomProgram;

class FormTest : public ::testing::TestWithParam<JobForm> {};
INSTANTIATE_TEST_SUITE_P(Forms, FormTest, ::testing::ValuesIn(kForms), job_form_name);

// ---- Random programs.

TEST_P(FormTest, RandomProgramsAreExact) {
  const auto body = [](Client& client) -> Status {
    RandomProgram program;
    program.seed = arguments.seed;
    program.num_ops = arguments.random_ops;
    return run_members(client, all_devices(client),
                       [&](const Member& m) { return run_random_program(m, program); });
  };
  EXPECT_THAT(run_form(GetParam(), arguments.random_ops, body), IsOk());
}

// ---- Growth.

Status expect_no_growth(const Holdings& before, const Holdings& after, int64_t num_ops,
                        int num_clients) {
  TESSERA_REQUIRE(after.descriptors <= before.descriptors, after.descriptors, " descriptors after ",
                  before.descriptors);
  if (kSanitized) return absl::OkStatus();
  TESSERA_REQUIRE(after.mappings <= before.mappings + 2, after.mappings, " mappings after ",
                  before.mappings);
  // Some queues and tables are longer than ever; the record of one operation alone is a KiB. A job
  // of several clients has gRPC, and was seen to take 18 KiB at once.
  const int64_t noise_bytes = (num_clients == 1 ? 8'000 : 64'000) + num_ops / 10;
  TESSERA_REQUIRE(after.heap_bytes <= before.heap_bytes + noise_bytes, after.heap_bytes,
                  " bytes of the heap after ", before.heap_bytes);
  TESSERA_REQUIRE(after.private_kib <= before.private_kib + 512, after.private_kib,
                  " KiB private after ", before.private_kib);
  // Pages of the arenas and of the groups' records: more operations than ever are under way.
  TESSERA_REQUIRE(after.shared_kib <= before.shared_kib + 1024, after.shared_kib,
                  " KiB shared after ", before.shared_kib);
  return absl::OkStatus();
}

// Few members meet all their peers, and touch all that is made once, in few operations.
constexpr JobForm kGrowthForms[] = {
    {"OneClientOfFour", Setting::kThreads, 1, 4},
    {"TwoProcessesOfTwo", Setting::kProcesses, 2, 2},
    {"FourProcessesOfOne", Setting::kProcesses, 4, 1},
};

class GrowthTest : public ::testing::TestWithParam<JobForm> {
 protected:
  // One heap for all threads, else it is chance how many there are. Children inherit it.
  void SetUp() override { mallopt(M_ARENA_MAX, 1); }
  void TearDown() override { mallopt(M_ARENA_MAX, 0); }
};
INSTANTIATE_TEST_SUITE_P(Forms, GrowthTest, ::testing::ValuesIn(kGrowthForms), job_form_name);

TEST_P(GrowthTest, NothingGrows) {
  const auto body = [](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4}"));
    RandomProgram program;
    program.seed = arguments.seed;
    const auto run_ops = [&](int64_t num_ops) -> Status {
      program.num_ops = num_ops;
      TESSERA_RETURN_IF_ERROR(run_members(client, all_devices(client), [&](const Member& m) {
        return run_random_program(m, program);
      }));
      // The others still use this client's memory, and it theirs.
      TESSERA_RETURN_IF_ERROR(mesh.barrier("part", absl::Seconds(60)));
      TESSERA_RETURN_IF_ERROR(client.sync_devices());
      const uint64_t live_bytes =
          internal::runtime_of(client)->devices().host_memory()->live_bytes();
      TESSERA_REQUIRE(live_bytes == 0, live_bytes, " bytes of the arenas are still in use");
      return absl::OkStatus();
    };
    // The first operations make groups, arenas and threads for messages. Repeating them needs no
    // new ones.
    const int64_t part = std::max<int64_t>(kSanitized ? 1000 : 4000, arguments.growth_ops / 10);
    TESSERA_RETURN_IF_ERROR(run_ops(part));
    const Holdings before = current_holdings();
    for (int64_t done = 0; done < arguments.growth_ops; done += part) {
      TESSERA_RETURN_IF_ERROR(run_ops(std::min(part, arguments.growth_ops - done)));
    }
    const Holdings after = current_holdings();
    if (client.client_id() == 0) {
      std::cout << "before " << arguments.growth_ops << " operations: " << before
                << "\nafter: " << after << std::endl;
    }
    return expect_no_growth(before, after, arguments.growth_ops, client.num_clients());
  };
  EXPECT_THAT(run_form(GetParam(), arguments.growth_ops, body), IsOk());
}

// ---- Ever new meshes and shapes. Issue 15, R17.

// The most resources that a client holds in each half of a long run.
class Halves {
 public:
  explicit Halves(int64_t count) : count_(count) {}
  void note(const Client& client, int64_t i) {
    if (i % 50 != 49) return;
    Runtime& runtime = *internal::runtime_of(client);
    const Holdings now = current_holdings();
    Most& most = i < count_ / 2 ? first_ : second_;
    most.heap_bytes = std::max(most.heap_bytes, now.heap_bytes);
    most.resident_kib = std::max(most.resident_kib, now.private_kib + now.shared_kib);
    most.group_bytes = std::max(most.group_bytes, runtime.devices().backend().num_group_bytes());
    most.num_cached = std::max(most.num_cached, runtime.programs().size());
  }
  Status check(const Client& client) const {
    if (client.client_id() == 0) {
      for (const Most& most : {first_, second_}) {
        std::cout << "at most " << most.heap_bytes << " bytes of the heap, " << most.resident_kib
                  << " KiB resident, " << most.group_bytes << " bytes of groups, "
                  << most.num_cached << " programs and plans" << std::endl;
      }
    }
    // Half of a control region, and the groups made since the last look.
    TESSERA_REQUIRE(second_.group_bytes < (uint64_t{129} << 20), second_.group_bytes);
    TESSERA_REQUIRE(second_.num_cached < 5000, second_.num_cached);
    if (kSanitized) return absl::OkStatus();
    TESSERA_REQUIRE(second_.heap_bytes <= first_.heap_bytes + first_.heap_bytes / 10 + 64'000,
                    second_.heap_bytes, " bytes of the heap after ", first_.heap_bytes);
    // All pages of the blocks are touched when their memory has been used twice.
    const int64_t untouched_kib =
        count_ < 10'000 ? static_cast<int64_t>(second_.group_bytes >> 10) : 0;
    TESSERA_REQUIRE(second_.resident_kib <=
                        first_.resident_kib + first_.resident_kib / 10 + 4096 + untouched_kib,
                    second_.resident_kib, " KiB resident after ", first_.resident_kib);
    return absl::OkStatus();
  }

 private:
  struct Most {
    int64_t heap_bytes = 0;
    int64_t resident_kib = 0;
    uint64_t group_bytes = 0;
    size_t num_cached = 0;
  };
  const int64_t count_;
  Most first_;
  Most second_;
};

// Four different devices out of n, in every order in turn.
std::vector<int> four_of(int n, int64_t number) {
  std::vector<int> ids(n);
  std::iota(ids.begin(), ids.end(), 0);
  for (int k = 0; k < 4; ++k) {
    std::swap(ids[k], ids[k + number % (n - k)]);
    number /= n - k;
  }
  ids.resize(4);
  return ids;
}

constexpr JobForm kNewMeshForms[] = {
    {"OneClientOfTwenty", Setting::kThreads, 1, 20},
    {"TwoProcessesOfSix", Setting::kProcesses, 2, 6},
};

class NewMeshesTest : public GrowthTest {};
INSTANTIATE_TEST_SUITE_P(Forms, NewMeshesTest, ::testing::ValuesIn(kNewMeshForms), job_form_name);

TEST_P(NewMeshesTest, NothingGrows) {
  const auto body = [](Client& client) -> Status {
    const auto n = static_cast<int>(client.devices().size());
    Halves halves(arguments.meshes);
    for (int64_t i = 0; i < arguments.meshes; ++i) {
      TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 4}}, four_of(n, i)));
      TESSERA_ASSIGN_OR_RETURN(const Layout rows, Layout::parse(mesh, "[x, -]"));
      TESSERA_ASSIGN_OR_RETURN(const Layout columns, Layout::parse(mesh, "[-, x]"));
      // Larger than the relayouts that a caller runs by itself.
      const DTensor moved = relayout(full<float>({4, 4096}, 1, rows), columns);
      TESSERA_RETURN_IF_ERROR(moved.await());
      TESSERA_RETURN_IF_ERROR(mesh.barrier("made", absl::Seconds(60)));
      halves.note(client, i);
    }
    return halves.check(client);
  };
  EXPECT_THAT(run_form(GetParam(), arguments.meshes, body), IsOk());
}

class NewShapesTest : public GrowthTest {};
INSTANTIATE_TEST_SUITE_P(Forms, NewShapesTest,
                         ::testing::Values(JobForm{"OneClientOfEight", Setting::kThreads, 1, 8}),
                         job_form_name);

TEST_P(NewShapesTest, NothingGrows) {
  const auto body = [](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
    TESSERA_ASSIGN_OR_RETURN(const Layout rows, Layout::parse(mesh, "[x, -]"));
    TESSERA_ASSIGN_OR_RETURN(const Layout columns, Layout::parse(mesh, "[-, x]"));
    Halves halves(arguments.shapes);
    for (int64_t i = 0; i < arguments.shapes; ++i) {
      // Each shape once; all of about the same size.
      const Shape shape = {200 + i % 300, 200 + i / 300};
      TESSERA_RETURN_IF_ERROR(relayout(zeros<float>(shape, rows), columns).await());
      halves.note(client, i);
    }
    return halves.check(client);
  };
  EXPECT_THAT(run_form(GetParam(), arguments.shapes, body), IsOk());
}

// ---- Many members.

constexpr JobForm kManyMembers[] = {
    {"OneClientOf64", Setting::kThreads, 1, 64},
    {"SixteenProcessesOnTwoCores", Setting::kProcesses, 16, 1},
};

class ManyMembersTest : public ::testing::TestWithParam<JobForm> {
 protected:
  // Children inherit the cores that this thread may use.
  void SetUp() override {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t two;
    CPU_ZERO(&two);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&two) < 2; ++cpu) {
      if (CPU_ISSET(cpu, &before_)) CPU_SET(cpu, &two);
    }
    sched_setaffinity(0, sizeof two, &two);
  }
  void TearDown() override { sched_setaffinity(0, sizeof before_, &before_); }

 private:
  cpu_set_t before_;
};
INSTANTIATE_TEST_SUITE_P(Forms, ManyMembersTest, ::testing::ValuesIn(kManyMembers), job_form_name);

TEST_P(ManyMembersTest, EveryCollectiveEnds) {
  if (kThreadSanitizer && GetParam().num_clients > 1) {
    GTEST_SKIP() << "a client takes a second to start here";
  }
  const auto body = [](Client& client) -> Status {
    return run_members(client, all_devices(client), [](const Member& m) -> Status {
      RandomProgram program;
      program.seed = arguments.seed;
      program.largest_size = 400;
      program.num_ops = arguments.calls;
      TESSERA_RETURN_IF_ERROR(run_random_program(m, program));
      program.on_all_members = true;  // each kind twice
      program.num_ops = std::max<int64_t>(2 * kNumOpKinds, arguments.calls / 10);
      return run_random_program(m, program);
    });
  };
  EXPECT_THAT(run_form(GetParam(), 10 * arguments.calls, body), IsOk());
}

// The slowest of many calls, on this member.
StatusOr<absl::Duration> slowest_call(const Member& m, int64_t num_calls) {
  const int n = m.group.size();
  absl::Duration slowest;
  for (const int64_t size : {1, 256, 4096}) {
    std::vector<float> in(size * n, 1.0f);
    std::vector<float> out(size * n);
    const absl::Span<const float> part = absl::MakeConstSpan(in).first(size);
    const std::function<Work()> calls[] = {
        [&] { return m.group.barrier(); },
        [&] {
          return m.group.all_reduce<float>(part, absl::MakeSpan(out).first(size), ReduceOp::kSum);
        },
        [&] { return m.group.all_gather<float>(part, absl::MakeSpan(out)); },
        [&] {
          return m.group.reduce_scatter<float>(in, absl::MakeSpan(out).first(size), ReduceOp::kSum);
        },
        [&] { return m.group.all_to_all<float>(in, absl::MakeSpan(out)); },
    };
    for (int64_t k = 0; k < num_calls; ++k) {
      for (const auto& call : calls) {
        const absl::Time start = steady_now();
        TESSERA_RETURN_IF_ERROR(call().await());
        // The first ones make the groups and the memory.
        if (k >= 10) slowest = std::max(slowest, steady_now() - start);
      }
    }
    TESSERA_REQUIRE(out == std::vector<float>(size * n, 1.0f), "all_to_all of ones");
  }
  return slowest;
}

TEST_P(ManyMembersTest, NoCallIsSlow) {
  if (arguments.slowest_call_ms == 0) GTEST_SKIP() << "measured by tools/soak alone";
  Shared<std::atomic<int64_t>> slowest_ns;
  const auto body = [&](Client& client) -> Status {
    return run_members(client, all_devices(client), [&](const Member& m) -> Status {
      TESSERA_ASSIGN_OR_RETURN(const absl::Duration took, slowest_call(m, arguments.calls));
      int64_t most = *slowest_ns;
      const int64_t own = absl::ToInt64Nanoseconds(took);
      while (own > most && !slowest_ns->compare_exchange_weak(most, own)) {
      }
      return absl::OkStatus();
    });
  };
  EXPECT_THAT(run_form(GetParam(), 100 * arguments.calls, body), IsOk());
  const double slowest_ms = static_cast<double>(slowest_ns->load()) / 1e6;
  std::cout << "slowest of " << arguments.calls * 15 << " calls: " << slowest_ms << " ms\n";
  EXPECT_LE(slowest_ms, arguments.slowest_call_ms);
}

// ---- Overlap.

// Lets computing devices end when the test leaves, whichever way.
struct Release {
  std::shared_ptr<std::atomic<bool>> flag = std::make_shared<std::atomic<bool>>(false);
  ~Release() { *flag = true; }
};

// Keeps the mesh's devices busy, with arithmetic and nothing else, until the flag is set.
DTensor compute_until(const Mesh& mesh, std::shared_ptr<std::atomic<bool>> flag) {
  return local_map(Layout::parse(mesh, "[x]"), {mesh.size()}, DType::kInt32, {},
                   [flag](LocalContext& local) {
                     uint32_t value = 1;
                     do {
                       value = value * 1664525 + 1013904223;
                     } while (!flag->load(std::memory_order_relaxed));
                     local.output<int32_t>().data[0] = static_cast<int32_t>(value | 1);
                   });
}

Status expect_sums(const Group& group, int64_t size) {
  std::vector<float> in(size, static_cast<float>(group.position() + 1));
  std::vector<float> out(size);
  TESSERA_RETURN_IF_ERROR(group.all_reduce<float>(in, absl::MakeSpan(out), ReduceOp::kSum).await());
  TESSERA_REQUIRE(out == std::vector<float>(size, 3.0f));
  return absl::OkStatus();
}

// Devices 0 and 2 meet, again and again, while 1 and 3 compute until they have done so. If a
// collective waited for a computing device, neither would end.
TEST(OverlapTest, CollectivesOfADeviceProceedWhileOthersOfItsClientCompute) {
  const JobSpec spec = {.setting = Setting::kProcesses, .num_clients = 2, .devices_per_client = 2};
  EXPECT_THAT(
      run_clients(spec,
                  [](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Mesh moving, live_mesh(client, "{x=2} on 0,2"));
                    TESSERA_ASSIGN_OR_RETURN(const Mesh computing,
                                             live_mesh(client, "{x=2} on 1,3"));
                    TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 2}));
                    const Release release;
                    const DTensor busy = compute_until(computing, release.flag);
                    for (const int64_t size : {1, 10, 100'000}) {
                      for (int k = 0; k < 10; ++k) {
                        TESSERA_RETURN_IF_ERROR(expect_sums(group, size));
                      }
                    }
                    const DTensor x = iota<float>({64, 64}, Layout::parse(moving, "[x, -]"));
                    TESSERA_RETURN_IF_ERROR(
                        expect_iota<float>(relayout(x, Layout::parse(moving, "[-, x]"))));
                    TESSERA_RETURN_IF_ERROR(moving.barrier("moved", absl::Seconds(60)));
                    *release.flag = true;
                    return busy.await();
                  }),
      IsOk());
}

// The other side joins only when it learns the result that the caller computed after its call had
// returned; then the caller continues to compute and never waits, and the collective ends at the
// same time.
TEST(OverlapTest, ACollectiveProceedsWhileItsCallerComputes) {
  for (const Setting setting : {Setting::kThreads, Setting::kProcesses}) {
    Gate computed;
    const JobSpec spec = {.setting = setting, .num_clients = 2};
    EXPECT_THAT(
        run_clients(spec,
                    [&](Client& client) -> Status {
                      TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1}));
                      for (const int64_t size : {10, 100'000}) {
                        // A caller that waits for each runs them itself; the next one runs without
                        // it.
                        for (int k = 0; k < 10; ++k)
                          TESSERA_RETURN_IF_ERROR(expect_sums(group, size));
                        std::vector<float> in(size, static_cast<float>(client.client_id() + 1));
                        std::vector<float> out(size);
                        if (client.client_id() == 1) TESSERA_RETURN_IF_ERROR(computed.wait());
                        const Work work =
                            group.all_reduce<float>(in, absl::MakeSpan(out), ReduceOp::kSum);
                        uint32_t value = 1;
                        for (int i = 0; i < 100'000; ++i) value = value * 1664525 + 1013904223;
                        if (client.client_id() == 0) {
                          TESSERA_REQUIRE(!work.done(), "the other client has not joined yet");
                          if (value != 0) computed.open();
                        }
                        while (!work.done()) value = value * 1664525 + 1013904223;
                        TESSERA_REQUIRE(out == std::vector<float>(size, 3.0f), value);
                      }
                      return absl::OkStatus();
                    }),
        IsOk())
        << setting;
  }
}

bool parse(absl::string_view text) {
  const auto number = [&](absl::string_view name, auto* value) {
    return absl::ConsumePrefix(&text, name) && absl::SimpleAtoi(text, value) && *value >= 1;
  };
  const auto milliseconds = [&](absl::string_view name, double* value) {
    return absl::ConsumePrefix(&text, name) && absl::SimpleAtod(text, value) && *value > 0;
  };
  return number("--seed=", &arguments.seed) || number("--random_ops=", &arguments.random_ops) ||
         number("--growth_ops=", &arguments.growth_ops) || number("--meshes=", &arguments.meshes) ||
         number("--shapes=", &arguments.shapes) || number("--calls=", &arguments.calls) ||
         number("--kills=", &arguments.kills) ||
         milliseconds("--slowest_call_ms=", &arguments.slowest_call_ms) ||
         milliseconds("--slowest_loss_ms=", &arguments.slowest_loss_ms);
}

int main_of_test(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const char* seed = std::getenv("TESSERA_TEST_SEED");
  if (seed != nullptr && !absl::SimpleAtoi(seed, &arguments.seed)) return 2;
  for (int i = 1; i < argc; ++i) {
    if (parse(argv[i])) continue;
    std::cerr << "bad argument: " << argv[i] << "; the first lines of " __FILE__ " list them\n";
    return 2;
  }
  std::cout << "TESSERA_TEST_SEED=" << arguments.seed << std::endl;
  return RUN_ALL_TESTS();
}

}  // namespace
}  // namespace tessera::testing

int main(int argc, char** argv) {
  // The memory that malloc keeps for each thread varies and looks like growth. malloc reads this
  // when a program starts.
  constexpr char kTunables[] = "GLIBC_TUNABLES";
  if (std::getenv(kTunables) == nullptr) {
    setenv(kTunables, "glibc.malloc.tcache_count=0", 1);
    execv("/proc/self/exe", argv);
  }
  return tessera::testing::main_of_test(argc, argv);
}
