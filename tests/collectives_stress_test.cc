// SPDX-License-Identifier: Apache-2.0
//
// Collectives in the long run: random programs, growth, many members, equal bits for every split of
// the devices over clients, overlap with compute, and clients that are killed at any moment.
//
//   collectives_stress_test [--seed=N] [--random_ops=N] [--growth_ops=N] [--calls=N] [--kills=N]
//                           [--slowest_call_ms=X] [--slowest_loss_ms=X]
//
// Without flags each proof is short, as CI runs it; tools/soak runs the long forms. What waits for
// a time of the clock (the two --slowest flags) is in long forms alone.
#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "Eigen/Core"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/conformance.h"
#include "collectives/host/kernels.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/local_map.h"
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
#include "tests/support/scalars.h"
#include "tests/support/shared.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

using conformance::Member;
using conformance::RandomProgram;

struct Arguments {
  uint64_t seed = 20240607;
  int64_t random_ops = kSanitized ? 200 : 2000;
  int64_t growth_ops = kSanitized ? 200 : 4000;
  int64_t calls = 40;
  int64_t kills = 8;
  double slowest_call_ms = 0;  // 0: not looked at
  double slowest_loss_ms = 0;
};
Arguments arguments;

constexpr JobForm kForms[] = {
    {"OneClientOfEight", Setting::kThreads, 1, 8},
    {"FourProcessesOfTwo", Setting::kProcesses, 4, 2},
    {"EightProcessesOfOne", Setting::kProcesses, 8, 1},
};

// Long forms take as long as they take; a hang ends them all the same.
Status run_form(const JobForm& form, int64_t num_ops, const ClientBody& body) {
  return run_clients({.setting = form.setting,
                      .num_clients = form.num_clients,
                      .devices_per_client = form.devices_per_client,
                      .deadline = absl::Seconds(100) + num_ops * absl::Milliseconds(20)},
                     body);
}

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
      const uint64_t live_bytes = client.runtime()->pool().live_bytes();
      TESSERA_REQUIRE(live_bytes == 0, live_bytes, " bytes of the arenas are still in use");
      return absl::OkStatus();
    };
    // What is made once is made: groups, arenas, threads for messages. Then the same operations
    // again, which need nothing more.
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

// ---- Many members.

constexpr JobForm kManyMembers[] = {
    {"OneClientOf64", Setting::kThreads, 1, 64},
    {"SixteenProcessesOnTwoCores", Setting::kProcesses, 16, 1},
};

class ManyMembersTest : public ::testing::TestWithParam<JobForm> {
 protected:
  // Children inherit what this thread may run on.
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
        const absl::Time start = absl::Now();
        TESSERA_RETURN_IF_ERROR(call().await());
        // The first ones make the groups and the memory.
        if (k >= 10) slowest = std::max(slowest, absl::Now() - start);
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

// ---- Equal bits for every split of the devices over clients.

constexpr int kBitsDevices = 8;

uint64_t scramble(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// A term whose sums, products and averages depend on their order: floats of both signs and of
// magnitudes that swallow each other's last bits, and now and then NaN of both signs.
template <class T>
T term(int member, int64_t i) {
  const uint64_t bits = scramble(static_cast<uint64_t>(i) * 64 + static_cast<uint64_t>(member) + 1);
  if constexpr (std::is_same_v<T, bool>) {
    return (bits & 1) != 0;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(bits);
  } else {
    const double sign = (bits & 1) != 0 ? 1.0 : -1.0;
    if (bits % 101 == 0) return static_cast<T>(std::copysign(std::nan(""), sign));
    const double mantissa = 1.0 + static_cast<double>(bits >> 12) / (int64_t{1} << 52);
    return static_cast<T>(sign * std::ldexp(mantissa, static_cast<int>(bits >> 1 & 7) - 3));
  }
}

template <class T>
std::unique_ptr<T[]> terms_of(int member, int64_t n) {
  auto terms = std::make_unique<T[]>(n);
  for (int64_t i = 0; i < n; ++i) terms[i] = term<T>(member, i);
  return terms;
}

class Digest {
 public:
  void add(const void* data, size_t num_bytes) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < num_bytes; i += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, bytes + i, std::min(sizeof word, num_bytes - i));
      value_ = scramble(value_ ^ word);
    }
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

// The sums, or what `op` makes, of the terms of all members: one scalar after another, ascending.
template <class T>
Status expect_reduced(absl::Span<const T> got, int num_members, ReduceOp op) {
  std::vector<T> terms(num_members);
  for (size_t i = 0; i < got.size(); ++i) {
    for (int k = 0; k < num_members; ++k) terms[k] = term<T>(k, static_cast<int64_t>(i));
    const T want = reduce_scalars(op, terms);
    TESSERA_REQUIRE(same(got[i], want), "element ", i, " of ", got.size(), " is ",
                    absl::StrFormat("%.17g, not %.17g", static_cast<double>(got[i]),
                                    static_cast<double>(want)));
  }
  return absl::OkStatus();
}

// The results of every kind of reduction of `size` elements. Where `wrong` is given it becomes the
// first that is not what scalars make; the member goes on, for the others would wait for it.
template <class T>
Status add_reductions(const Member& m, ReduceOp op, int64_t size, Digest& digest, Status* wrong) {
  const int n = m.group.size();
  const auto in = terms_of<T>(m.position, size);
  const auto out = std::make_unique<T[]>(size);
  const absl::Span<const T> whole_in(in.get(), size);
  const absl::Span<T> whole_out(out.get(), size);
  TESSERA_RETURN_IF_ERROR(m.group.all_reduce<T>(whole_in, whole_out, op).await());
  // Of large ones on one member alone: it takes long.
  if (wrong != nullptr && wrong->ok() && (size < 10'000 || m.position == 0)) {
    *wrong = with_context(expect_reduced<T>(whole_out, n, op),
                          absl::StrCat("member ", m.position, ", ", reduce_op_name(op), " ",
                                       dtype_name(dtype_of<T>())));
  }
  digest.add(out.get(), size * sizeof(T));
  TESSERA_RETURN_IF_ERROR(m.group.reduce<T>(whole_in, whole_out, op, n - 1).await());
  digest.add(out.get(), size * sizeof(T));
  std::vector<int64_t> counts(n, size / n);
  counts[0] += size % n;
  const absl::Span<T> part = whole_out.first(counts[m.position]);
  TESSERA_RETURN_IF_ERROR(m.group.reduce_scatter<T>(whole_in, part, op, counts).await());
  digest.add(out.get(), part.size() * sizeof(T));
  return absl::OkStatus();
}

// Of the results of each reduction on each device.
using Digests = uint64_t[kNumDTypes][kNumReduceOps][kBitsDevices];
struct Bits {
  Digests of_collectives;
  Digests of_relayouts;
};

// The shards of a partial tensor after relayouts, whole and split.
template <class T>
Status add_relayouts(const Client& client, const Mesh& mesh, ReduceOp op, uint64_t* of_devices) {
  const Shape shape = {7, 29};
  std::vector<HostTensor<T>> shards;
  for (const Device& device : client.local_devices()) {
    HostTensor<T>& shard = shards.emplace_back();
    shard.shape = shape;
    for (int64_t i = 0; i < num_elements(shape); ++i) shard.data.push_back(term<T>(device.id, i));
  }
  const std::string partial = absl::StrCat("[-, -] ", reduce_op_name(op), "{x}");
  const DTensor terms = from_shards<T>(shape, Layout::parse(mesh, partial), shards);
  for (const char* to : {"[-, -]", "[x, -]", "[-, x]"}) {
    const DTensor value = relayout(terms, Layout::parse(mesh, to));
    for (int s = 0; s < value.num_local_shards(); ++s) {
      TESSERA_ASSIGN_OR_RETURN(const ShardView<T> shard, value.shard<T>(s));
      uint64_t& of_device = of_devices[client.local_devices()[s].id];
      Digest digest;
      digest.add(&of_device, sizeof of_device);
      digest.add(shard.data.data(), shard.data.size() * sizeof(T));
      of_device = digest.value();
    }
  }
  return absl::OkStatus();
}

// Calls fn(dtype, op) for every reduction there is.
template <class Fn>
Status for_each_reduction(Fn fn) {
  for (int t = 0; t < kNumDTypes; ++t) {
    for (int k = 0; k < kNumReduceOps; ++k) {
      const auto dtype = static_cast<DType>(t);
      const auto op = static_cast<ReduceOp>(k);
      if (validate_reduction(op, dtype).ok()) TESSERA_RETURN_IF_ERROR(fn(dtype, op));
    }
  }
  return absl::OkStatus();
}

Status member_bits(const Member& m, bool compare_with_scalars, Digests& digests) {
  // With streaming stores.
  const int64_t streamed =
      host::last_level_cache_bytes() / (2 * kBitsDevices * sizeof(float)) + 1000;
  Status wrong;
  const Status ended = for_each_reduction([&](DType dtype, ReduceOp op) {
    return visit_dtype(dtype, [&]<class T>() -> Status {
      Digest digest;
      // In the entries, in chunks of few lines, and in chunks of blocks.
      std::vector<int64_t> sizes = {5, 1000, 9001};
      if (dtype == DType::kFloat32 && op == ReduceOp::kSum) sizes.push_back(streamed);
      for (const int64_t size : sizes) {
        Status* const looked_at = compare_with_scalars ? &wrong : nullptr;
        TESSERA_RETURN_IF_ERROR(add_reductions<T>(m, op, size, digest, looked_at));
      }
      digests[static_cast<int>(dtype)][static_cast<int>(op)][m.position] = digest.value();
      return absl::OkStatus();
    });
  });
  return wrong.ok() ? ended : wrong;
}

// How many elements of the sum over all devices change when it is taken the other way round.
template <class T>
int64_t num_sums_that_depend_on_order(int64_t n) {
  int64_t result = 0;
  for (int64_t i = 0; i < n; ++i) {
    T up = term<T>(0, i);
    T down = term<T>(kBitsDevices - 1, i);
    for (int k = 1; k < kBitsDevices; ++k) {
      up = static_cast<T>(up + term<T>(k, i));
      down = static_cast<T>(down + term<T>(kBitsDevices - 1 - k, i));
    }
    const bool are_numbers = up == up && down == down;
    result += are_numbers && up != down ? 1 : 0;
  }
  return result;
}

TEST(BitsTest, TheSumsOfTheTermsDependOnTheirOrder) {
  EXPECT_GT(num_sums_that_depend_on_order<double>(1000), 300);
  EXPECT_GT(num_sums_that_depend_on_order<float>(1000), 300);
  EXPECT_GT(num_sums_that_depend_on_order<Eigen::half>(1000), 300);
  EXPECT_GT(num_sums_that_depend_on_order<Eigen::bfloat16>(1000), 300);
}

// "sum f32 of devices 3 7", a line for each reduction whose results differ.
std::string differences(const Digests& got, const Digests& wanted) {
  std::string text;
  for_each_reduction([&](DType dtype, ReduceOp op) {
    const auto& row = got[static_cast<int>(dtype)][static_cast<int>(op)];
    const auto& wanted_row = wanted[static_cast<int>(dtype)][static_cast<int>(op)];
    std::string devices;
    for (int device = 0; device < kBitsDevices; ++device) {
      const bool is_right = row[device] == wanted_row[device] && row[device] != 0;
      if (!is_right) absl::StrAppend(&devices, " ", device);
    }
    if (!devices.empty()) {
      absl::StrAppend(&text, reduce_op_name(op), " ", dtype_name(dtype), " of devices", devices,
                      "\n");
    }
    return absl::OkStatus();
  }).IgnoreError();
  return text;
}

TEST(BitsTest, EveryReductionHasTheSameBitsForEverySplitOverClients) {
  Bits first = {};
  for (const JobForm& form : kForms) {
    SCOPED_TRACE(form.name);
    Shared<Bits> bits;
    const auto body = [&](Client& client) -> Status {
      TESSERA_RETURN_IF_ERROR(run_members(client, all_devices(client), [&](const Member& m) {
        return member_bits(m, client.num_clients() == 1 && !kSanitized, bits->of_collectives);
      }));
      TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
      return for_each_reduction([&](DType dtype, ReduceOp op) {
        uint64_t* const row = bits->of_relayouts[static_cast<int>(dtype)][static_cast<int>(op)];
        return visit_dtype(dtype,
                           [&]<class T>() { return add_relayouts<T>(client, mesh, op, row); });
      });
    };
    ASSERT_THAT(run_form(form, 0, body), IsOk());
    if (form.num_clients == 1) first = *bits;
    EXPECT_EQ(differences(bits->of_collectives, first.of_collectives), "")
        << "collectives, in other bits than with one client";
    EXPECT_EQ(differences(bits->of_relayouts, first.of_relayouts), "")
        << "relayouts, in other bits than with one client";
  }
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

// The other side joins only when it hears what the caller computed after its call had returned;
// then the caller goes on computing and never waits, and the collective ends beside it.
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
                          TESSERA_REQUIRE(!work.done(), "nobody has joined yet");
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

// ---- Clients that are killed at any moment.

constexpr int kKillClients = 6;  // of which two are left in the end

struct Kills {
  std::atomic<int64_t> killed_at_ns;  // CLOCK_MONOTONIC, of the victim of this stage
  std::atomic<int64_t> slowest_loss_ns;
};

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

// The kernel kills this process at that time, wherever it is then.
void kill_at(int64_t time_ns) {
  sigevent event = {};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer;
  timer_create(CLOCK_MONOTONIC, &event, &timer);
  const itimerspec at = {{}, {time_ns / 1'000'000'000, time_ns % 1'000'000'000}};
  timer_settime(timer, TIMER_ABSTIME, &at, nullptr);
}

// Client 0 holds the coordinator, so it stays.
std::vector<int> victims_of(uint64_t seed) {
  std::vector<int> order;
  for (int client = 1; client < kKillClients; ++client) order.push_back(client);
  for (size_t k = order.size() - 1; k > 0; --k)
    std::swap(order[k], order[scramble(seed + k) % (k + 1)]);
  order.resize(kKillClients - 2);
  return order;
}

// OK where the error says that `victim` is lost.
Status expect_lost(const Status& error, int victim, Kills& kills) {
  const int64_t took_ns = now_ns() - kills.killed_at_ns;
  int64_t most = kills.slowest_loss_ns;
  while (took_ns > most && !kills.slowest_loss_ns.compare_exchange_weak(most, took_ns)) {
  }
  return expect_error(error, absl::StatusCode::kUnavailable,
                      {absl::StrCat("client ", victim, " "), "lost"});
}

// Random collectives of the clients in `alive`, of which `victim` is killed on the way; then the
// others make a mesh without it and go on.
Status kill_stage(Client& client, const std::vector<int>& alive, int victim, uint64_t seed,
                  Kills& kills) {
  RandomProgram program;
  program.seed = seed;
  program.num_ops = 40;
  program.most_under_way = 24;  // beyond what the records of a group hold
  program.largest_size = scramble(seed) % 3 == 0 ? 100'000 : 4000;
  // Nobody is killed before all have met.
  TESSERA_ASSIGN_OR_RETURN(const Group group, client.group(alive));
  TESSERA_RETURN_IF_ERROR(group.barrier().await());
  if (client.client_id() == victim) {
    // Within the program, for most; it takes some milliseconds.
    kills.killed_at_ns = now_ns() + static_cast<int64_t>(scramble(seed + 1) % 20'000'000);
    kill_at(kills.killed_at_ns);
  }
  bool known = false;
  program.on_error = [&](const Status& error) {
    if (std::exchange(known, true)) {
      return expect_error(error, absl::StatusCode::kUnavailable,
                          {absl::StrCat("client ", victim, " "), "lost"});
    }
    return expect_lost(error, victim, kills);
  };
  TESSERA_RETURN_IF_ERROR(
      run_members(client, alive, [&](const Member& m) { return run_random_program(m, program); }));
  if (client.client_id() == victim) {
    while (true) pause();
  }
  // Together with the victim nothing works, and it is known why.
  Status status;
  while (status.ok()) status = group.barrier().await();
  TESSERA_RETURN_IF_ERROR(program.on_error(status));
  client.sync_devices().IgnoreError();

  std::vector<int> survivors = alive;
  std::erase(survivors, victim);
  const auto n = static_cast<int64_t>(survivors.size());
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", n}}, survivors));
  TESSERA_RETURN_IF_ERROR(mesh.barrier("survivors", absl::Seconds(60)));
  const DTensor x = iota<float>({100, 30}, Layout::parse(mesh, "[x, -]"));
  TESSERA_RETURN_IF_ERROR(expect_iota<float>(relayout(x, Layout::parse(mesh, "[-, x]"))));
  program.on_error = nullptr;
  program.first_op = program.num_ops;
  program.num_ops = 10;
  TESSERA_RETURN_IF_ERROR(run_members(
      client, survivors, [&](const Member& m) { return run_random_program(m, program); }));
  // Nobody begins the next stage before all have ended this one.
  return mesh.barrier("stage", absl::Seconds(60));
}

Status kill_one_after_another(Client& client, uint64_t seed, Kills& kills) {
  std::vector<int> alive = all_devices(client);
  const Holdings before = current_holdings();
  for (const int victim : victims_of(seed)) {
    TESSERA_RETURN_IF_ERROR(with_context(
        kill_stage(client, alive, victim, scramble(seed + static_cast<uint64_t>(victim)), kills),
        absl::StrCat("client ", victim, " killed, seed ", seed)));
    std::erase(alive, victim);
  }
  const Holdings after = current_holdings();
  TESSERA_REQUIRE(after.sockets_and_events <= before.sockets_and_events, after.sockets_and_events,
                  " after ", before.sockets_and_events);
  return client.shutdown(absl::Seconds(30));
}

TEST(KillTest, SurvivorsHearOfItAndGoOnAndNothingIsLeft) {
  const std::set<std::string> descriptors = entries_of("/proc/self/fd");
  const std::set<std::string> shm = tessera_entries_of("/dev/shm");
  // A folder for temporary files of their own: /tmp is everybody's.
  const std::string tmp = absl::StrCat(::testing::TempDir(), "/killed");
  mkdir(tmp.c_str(), 0700);
  setenv("TMPDIR", tmp.c_str(), 1);
  Shared<Kills> kills;
  const int64_t kills_per_job = kKillClients - 2;
  for (int64_t job = 0; job * kills_per_job < arguments.kills; ++job) {
    const uint64_t seed = scramble(arguments.seed + static_cast<uint64_t>(job));
    const std::vector<Status> statuses =
        run_processes({.num_clients = kKillClients},
                      [&](Client& client) { return kill_one_after_another(client, seed, *kills); });
    const std::vector<int> victims = victims_of(seed);
    for (int client = 0; client < kKillClients; ++client) {
      const bool is_victim = std::find(victims.begin(), victims.end(), client) != victims.end();
      EXPECT_EQ(statuses[client].code(),
                is_victim ? absl::StatusCode::kAborted : absl::StatusCode::kOk)
          << "job " << job << ", client " << client << ": " << statuses[client];
    }
    ASSERT_FALSE(HasFailure()) << "repeat: --seed=" << arguments.seed + job << " --kills=1";
    EXPECT_EQ(entries_of("/proc/self/fd"), descriptors);
    EXPECT_EQ(tessera_entries_of("/dev/shm"), shm);
    EXPECT_THAT(entries_of(tmp), ::testing::UnorderedElementsAre(".", ".."));
    // No child of this process is left, running or dead.
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  }
  unsetenv("TMPDIR");
  const double slowest_ms = static_cast<double>(kills->slowest_loss_ns) / 1e6;
  std::cout << "slowest from SIGKILL to the error of a survivor: " << slowest_ms << " ms\n";
  if (arguments.slowest_loss_ms > 0) {
    EXPECT_LE(slowest_ms, arguments.slowest_loss_ms);
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
         number("--growth_ops=", &arguments.growth_ops) || number("--calls=", &arguments.calls) ||
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
  // What malloc keeps for each thread, so much today and so much tomorrow, looks like growth. It
  // reads this when a program starts.
  constexpr char kTunables[] = "GLIBC_TUNABLES";
  if (std::getenv(kTunables) == nullptr) {
    setenv(kTunables, "glibc.malloc.tcache_count=0", 1);
    execv("/proc/self/exe", argv);
  }
  return tessera::testing::main_of_test(argc, argv);
}
