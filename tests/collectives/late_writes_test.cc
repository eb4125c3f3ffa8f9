// SPDX-License-Identifier: Apache-2.0
//
// A client that is held up while it writes into the outputs of others, as by SIGSTOP, goes on when
// the operation has failed long ago, and the memory may be in other hands. A row is where the
// output is.
//
//   client 0   all_reduce ......... Unavailable, uses the memory anew ............ still as it was?
//   client 1   all_reduce, at its first write [held up              ], writes all the rest
//   client 2   all_reduce .. killed
//
// Client 1 is held up by a page fault, for it has made the memory of the others read-only.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "device/cpu/arena.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "dtensor/runtime.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/clients.h"
#include "tests/support/gate.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/shared.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;

constexpr int64_t kSize = 48 << 10;  // floats, of which client 1 writes a third

// Makes the arenas of other clients read-only to this one. The first write makes them writable: it
// opens a gate, and continues when another gate opens.
class HeldUpWrites {
 public:
  static Status arm(const Client& client, Gate& reached, Gate& resume) {
    reached_ = &reached;
    resume_ = &resume;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      uintptr_t begin = 0;
      uintptr_t end = 0;
      if (!absl::StrContains(line, "memfd:tessera-arena") ||
          std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) != 2) {
        continue;
      }
      auto* const memory = reinterpret_cast<std::byte*>(begin);
      ArenaPool& pool = *internal::runtime_of(client)->devices().host_memory();
      if (pool.locate(memory, 1).has_value()) continue;
      ranges_.push_back({memory, end - begin});
    }
    TESSERA_REQUIRE(ranges_.size() >= 2, ranges_.size(), " arenas of two other clients");
    struct sigaction action = {};
    action.sa_handler = &on_fault;
    sigaction(SIGSEGV, &action, nullptr);
    protect(PROT_READ);
    return absl::OkStatus();
  }

 private:
  struct Range {
    std::byte* begin;
    size_t size;
  };

  static void protect(int protection) {
    for (const Range& range : ranges_) mprotect(range.begin, range.size, protection);
  }
  static void on_fault(int) {
    // A fault that has nothing to do with this comes again, and ends the process.
    signal(SIGSEGV, SIG_DFL);
    reached_->open();
    resume_->wait().IgnoreError();
    protect(PROT_READ | PROT_WRITE);
  }

  static inline std::vector<Range> ranges_;
  static inline Gate* reached_ = nullptr;
  static inline Gate* resume_ = nullptr;
};

// A result in the memory of a client, until this object goes.
struct Output {
  std::vector<float> heap;
  std::optional<DTensor> tensor;
  std::optional<Work> work;

  Status await() const { return work.has_value() ? work->await() : tensor->await(); }
};

enum class Place { kHeap, kArena, kTensor, kSharedReplica };

struct Row {
  const char* name;
  Place place;
};
constexpr Row kRows[] = {
    {"heap", Place::kHeap},
    {"memory_of_a_tensor", Place::kArena},
    {"tensor", Place::kTensor},
    {"shared_replica", Place::kSharedReplica},
};
std::ostream& operator<<(std::ostream& out, const Row& row) { return out << row.name; }

// A tensor of this client alone, and where it is.
StatusOr<DTensor> own_tensor(const Client& client, float value, absl::Span<float>* memory) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh alone,
                           live_mesh(client, absl::StrCat("{x=1} on ", client.client_id())));
  DTensor tensor = from_function<float>({kSize}, Layout::parse(alone, "[-]"),
                                        [&](const Box&, absl::Span<float> out) {
                                          std::fill(out.begin(), out.end(), value);
                                          *memory = out;
                                        });
  TESSERA_RETURN_IF_ERROR(tensor.await());
  return tensor;
}

// Starts the sum of ones over all clients. Late writes are of 3, or of 9 where they write to the
// input of client 0.
StatusOr<Output> start_sum(Client& client, Place place, const std::vector<float>& ones) {
  Output output;
  if (place == Place::kTensor || place == Place::kSharedReplica) {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=3}"));
    const DTensor terms = from_shards<float>({kSize}, Layout::parse(mesh, "[-] sum{x}"),
                                             std::vector{HostTensor<float>{{kSize}, ones}});
    output.tensor = relayout(terms, Layout::parse(mesh, "[-]"),
                             place == Place::kTensor ? Replicas::kOwn : Replicas::kShared);
    return output;
  }
  TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1, 2}));
  absl::Span<float> out;
  if (place == Place::kHeap) {
    output.heap.resize(kSize);
    out = absl::MakeSpan(output.heap);
  } else {
    TESSERA_ASSIGN_OR_RETURN(output.tensor, own_tensor(client, 0, &out));
  }
  output.work = group.all_reduce<float>(ones, out, ReduceOp::kSum);
  return output;
}

Status expect_sevens(absl::Span<const float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    TESSERA_REQUIRE(values[i] == 7, "element ", i, " was written late, and is ", values[i]);
  }
  return absl::OkStatus();
}

struct Gates {
  Gate armed, reached, resume, written, checked;
};

Status survive(Client& client, Place place, pid_t victim, Gates& gates) {
  const std::vector<float> ones(kSize, 1);
  TESSERA_RETURN_IF_ERROR(gates.armed.wait());
  TESSERA_ASSIGN_OR_RETURN(std::optional<Output> output, start_sum(client, place, ones));
  TESSERA_RETURN_IF_ERROR(gates.reached.wait());
  kill(victim, SIGKILL);
  TESSERA_RETURN_IF_ERROR(
      expect_error(output->await(), StatusCode::kUnavailable, {"client 2 ", "lost"}));
  // The memory is the caller's again, or is given up.
  std::vector<float> heap = std::move(output->heap);
  output.reset();
  std::fill(heap.begin(), heap.end(), 7.0f);
  std::vector<DTensor> tensors;
  std::vector<absl::Span<float>> used = {absl::MakeSpan(heap)};
  for (int i = 0; i < 4; ++i) {
    TESSERA_ASSIGN_OR_RETURN(const DTensor tensor, own_tensor(client, 7, &used.emplace_back()));
    tensors.push_back(tensor);
  }
  gates.resume.open();
  TESSERA_RETURN_IF_ERROR(gates.written.wait());
  Status status;
  for (const absl::Span<float> memory : used) status.Update(expect_sevens(memory));
  gates.checked.open();
  return status;
}

Status write_late(Client& client, Place place, Gates& gates) {
  const std::vector<float> ones(kSize, 1);
  // Whatever is made once is made before.
  absl::Span<float> memory;
  TESSERA_RETURN_IF_ERROR(own_tensor(client, 0, &memory).status());
  TESSERA_RETURN_IF_ERROR(HeldUpWrites::arm(client, gates.reached, gates.resume));
  gates.armed.open(2);
  TESSERA_ASSIGN_OR_RETURN(const Output output, start_sum(client, place, ones));
  TESSERA_RETURN_IF_ERROR(
      expect_error(output.await(), StatusCode::kUnavailable, {"client 2 ", "lost"}));
  gates.written.open();
  return gates.checked.wait();
}

class LateWritesTest : public ::testing::TestWithParam<Row> {};
INSTANTIATE_TEST_SUITE_P(Places, LateWritesTest, ::testing::ValuesIn(kRows),
                         [](const auto& row) { return row.param.name; });

TEST_P(LateWritesTest, MemoryThatIsUsedAnewStaysAsItIs) {
  const Place place = GetParam().place;
  Gates gates;
  Shared<std::atomic<pid_t>> victim;
  const std::vector<Status> statuses =
      run_processes({.num_clients = 3}, [&](Client& client) -> Status {
        if (client.client_id() == 2) *victim = getpid();
        // The arenas of all are mapped by all, and the group is there.
        TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1, 2}));
        const std::vector<float> ones(kSize, 1);
        std::vector<float> sums(kSize);
        TESSERA_RETURN_IF_ERROR(
            group.all_reduce<float>(ones, absl::MakeSpan(sums), ReduceOp::kSum).await());
        TESSERA_RETURN_IF_ERROR(group.barrier().await());
        if (client.client_id() == 0) return survive(client, place, *victim, gates);
        if (client.client_id() == 1) return write_late(client, place, gates);
        TESSERA_RETURN_IF_ERROR(gates.armed.wait());
        TESSERA_ASSIGN_OR_RETURN(const Output output, start_sum(client, place, ones));
        output.await().IgnoreError();
        while (true) pause();
      });
  EXPECT_THAT(statuses[0], IsOk());
  EXPECT_THAT(statuses[1], IsOk());
  EXPECT_THAT(statuses[2], StatusIs(StatusCode::kAborted));
}

}  // namespace
}  // namespace tessera::testing
