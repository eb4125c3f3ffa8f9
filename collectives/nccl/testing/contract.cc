// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/testing/contract.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>

#include "Eigen/Core"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/reduce_op.h"

namespace tessera::nccl {
namespace {

constexpr uint64_t kMostBytes = 1 << 16;

Status expect(bool condition, absl::string_view what) {
  return condition ? absl::OkStatus() : absl::InternalError(absl::StrCat("not so: ", what));
}

// Polls until the condition is true, for half a minute.
Status wait_until(const std::function<StatusOr<bool>()>& is_so, absl::string_view what) {
  const absl::Time deadline = steady_now() + absl::Seconds(30);
  while (true) {
    TESSERA_ASSIGN_OR_RETURN(const bool so, is_so());
    if (so) return absl::OkStatus();
    if (steady_now() > deadline) return absl::DeadlineExceededError(what);
    std::this_thread::yield();
  }
}

// A case, from the view of a rank.
struct Job {
  cuda::Api& cuda;
  Api& nccl;
  int num_ranks;
  int gpu;
  UniqueId& id;
  Meeting& together;
};

// One rank: a GPU with a stream, memory on both sides, and its communicator.
class Rank {
 public:
  static StatusOr<std::unique_ptr<Rank>> create(Job& job, int rank) {
    std::unique_ptr<Rank> self(new Rank(job, rank));
    TESSERA_RETURN_IF_ERROR(job.cuda.set_device(job.gpu));
    TESSERA_ASSIGN_OR_RETURN(self->stream, job.cuda.create_stream());
    TESSERA_ASSIGN_OR_RETURN(self->event_, job.cuda.create_event());
    TESSERA_ASSIGN_OR_RETURN(self->in, job.cuda.allocate(kMostBytes));
    TESSERA_ASSIGN_OR_RETURN(self->out, job.cuda.allocate(kMostBytes));
    TESSERA_ASSIGN_OR_RETURN(self->host_, job.cuda.allocate_pinned(kMostBytes));
    return self;
  }
  ~Rank() {
    for (std::byte* memory : {in, out}) job.cuda.free(memory).IgnoreError();
    if (host_ != nullptr) job.cuda.free_pinned(host_).IgnoreError();
    if (event_ != nullptr) job.cuda.destroy_event(event_).IgnoreError();
    if (stream != nullptr) job.cuda.destroy_stream(stream).IgnoreError();
  }

  Status join(const UniqueId& id) {
    TESSERA_ASSIGN_OR_RETURN(comm, job.nccl.comm_init_rank(job.num_ranks, id, rank));
    return settle();
  }
  // Until nothing is in progress.
  Status settle() {
    return wait_until([this] { return job.nccl.poll(comm); }, "a call stays in progress");
  }
  // A communicator is done with its work a little before the stream is, which still holds memory.
  Status leave() {
    TESSERA_RETURN_IF_ERROR(job.nccl.comm_finalize(comm));
    TESSERA_RETURN_IF_ERROR(settle());
    TESSERA_RETURN_IF_ERROR(job.nccl.comm_destroy(comm));
    return drain();
  }
  // Every byte of `in` is a function of where it is and of the rank.
  static std::byte value(int rank, uint64_t i) {
    return static_cast<std::byte>(i * 7 + i / 251 + static_cast<uint64_t>(rank) * 31);
  }
  Status fill_in() {
    for (uint64_t i = 0; i < kMostBytes; ++i) host_[i] = value(rank, i);
    TESSERA_RETURN_IF_ERROR(job.cuda.copy(in, host_, kMostBytes, stream));
    return drain();
  }
  Status drain() {
    TESSERA_RETURN_IF_ERROR(job.cuda.record_event(event_, stream));
    return wait_until([this] { return job.cuda.query_event(event_); }, "the stream is not done");
  }
  Status upload(const std::byte* from, uint64_t num_bytes) {
    std::memcpy(host_, from, num_bytes);
    TESSERA_RETURN_IF_ERROR(job.cuda.copy(in, host_, num_bytes, stream));
    return drain();
  }
  // The contents of `out` when the stream has done all work.
  StatusOr<const std::byte*> download() {
    TESSERA_RETURN_IF_ERROR(settle());
    TESSERA_RETURN_IF_ERROR(job.cuda.copy(host_, out, kMostBytes, stream));
    TESSERA_RETURN_IF_ERROR(drain());
    return host_;
  }
  // Checks that `num_bytes` of `out` from `to` on equal the bytes of rank `source` from `from` on.
  Status expect_out(uint64_t to, int source, uint64_t from, uint64_t num_bytes) {
    TESSERA_RETURN_IF_ERROR(download().status());
    for (uint64_t i = 0; i < num_bytes; ++i) {
      TESSERA_RETURN_IF_ERROR(
          expect(host_[to + i] == value(source, from + i),
                 absl::StrCat("byte ", i, " of ", num_bytes, " came from rank ", source)));
    }
    return absl::OkStatus();
  }

  Job& job;
  const int rank;
  StreamHandle stream = nullptr;
  std::byte* in = nullptr;
  std::byte* out = nullptr;
  CommHandle comm = nullptr;

 private:
  Rank(Job& job, int rank) : job(job), rank(rank) {}
  cuda::EventHandle event_ = nullptr;
  std::byte* host_ = nullptr;
};

using RankBody = std::function<Status(Rank&)>;

Status run_rank(Job& job, int rank, const RankBody& body) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Rank> self, Rank::create(job, rank));
  TESSERA_RETURN_IF_ERROR(self->fill_in());
  TESSERA_RETURN_IF_ERROR(self->join(job.id));
  TESSERA_RETURN_IF_ERROR(body(*self));
  return self->leave();
}

ContractCase make_case(std::string name, int num_ranks, RankBody body) {
  const auto run = [num_ranks, body = std::move(body)](cuda::Api& cuda, Api& nccl, Meeting& meeting,
                                                       int rank, int gpu) {
    Status made;
    if (rank == 0) {
      const StatusOr<UniqueId> id = nccl.get_unique_id();
      made = id.status();
      if (id.ok()) meeting.id = *id;
    }
    meeting.arrive_and_wait();
    Job job = {cuda, nccl, num_ranks, gpu, meeting.id, meeting};
    return made.ok() ? tessera::nccl::run_rank(job, rank, body) : made;
  };
  return {std::move(name), num_ranks, run};
}

// Each sends to the next and receives from the one before, in one group.
Status ring(Rank& r) {
  const int n = r.job.num_ranks;
  const int previous = (r.rank + n - 1) % n;
  for (const uint64_t num_bytes : {uint64_t{1}, uint64_t{1000}, kMostBytes}) {
    TESSERA_RETURN_IF_ERROR(r.job.nccl.group_start());
    TESSERA_RETURN_IF_ERROR(r.job.nccl.send(r.in, num_bytes, (r.rank + 1) % n, r.comm, r.stream));
    TESSERA_RETURN_IF_ERROR(r.job.nccl.recv(r.out, num_bytes, previous, r.comm, r.stream));
    TESSERA_RETURN_IF_ERROR(r.job.nccl.group_end());
    TESSERA_RETURN_IF_ERROR(r.expect_out(0, previous, 0, num_bytes));
  }
  return absl::OkStatus();
}

// Several between the same two, of different sizes, meet in the order of the calls.
Status several_messages(Rank& r) {
  const int peer = 1 - r.rank;
  const uint64_t sizes[] = {10, 300, 1, 4096};
  TESSERA_RETURN_IF_ERROR(r.job.nccl.group_start());
  uint64_t offset = 0;
  for (const uint64_t size : sizes) {
    TESSERA_RETURN_IF_ERROR(r.job.nccl.send(r.in + offset, size, peer, r.comm, r.stream));
    TESSERA_RETURN_IF_ERROR(r.job.nccl.recv(r.out + offset, size, peer, r.comm, r.stream));
    offset += size;
  }
  TESSERA_RETURN_IF_ERROR(r.job.nccl.group_end());
  return r.expect_out(0, peer, 0, offset);
}

// Ranks that have nothing to do with a group do not call.
Status others_stay_away(Rank& r) {
  if (r.rank == 2) return absl::OkStatus();
  const int peer = 1 - r.rank;
  TESSERA_RETURN_IF_ERROR(r.job.nccl.group_start());
  if (r.rank == 0) TESSERA_RETURN_IF_ERROR(r.job.nccl.send(r.in, 64, peer, r.comm, r.stream));
  if (r.rank == 1) TESSERA_RETURN_IF_ERROR(r.job.nccl.recv(r.out, 64, peer, r.comm, r.stream));
  TESSERA_RETURN_IF_ERROR(r.job.nccl.group_end());
  return r.rank == 1 ? r.expect_out(0, 0, 0, 64) : r.settle();
}

Status all_gathers(Rank& r) {
  constexpr uint64_t kBytes = 1000;
  TESSERA_RETURN_IF_ERROR(r.job.nccl.all_gather(r.in, r.out, kBytes, r.comm, r.stream));
  for (int k = 0; k < r.job.num_ranks; ++k) {
    TESSERA_RETURN_IF_ERROR(r.expect_out(static_cast<uint64_t>(k) * kBytes, k, 0, kBytes));
  }
  // In place.
  std::byte* const own = r.out + static_cast<uint64_t>(r.rank) * kBytes;
  TESSERA_RETURN_IF_ERROR(r.job.cuda.copy(own, r.in + 5, kBytes, r.stream));
  TESSERA_RETURN_IF_ERROR(r.job.nccl.all_gather(own, r.out, kBytes, r.comm, r.stream));
  for (int k = 0; k < r.job.num_ranks; ++k) {
    TESSERA_RETURN_IF_ERROR(r.expect_out(static_cast<uint64_t>(k) * kBytes, k, 5, kBytes));
  }
  return absl::OkStatus();
}

Status broadcasts(Rank& r) {
  for (int root = 0; root < r.job.num_ranks; ++root) {
    TESSERA_RETURN_IF_ERROR(r.job.nccl.broadcast(r.in, r.out, 5000, root, r.comm, r.stream));
    TESSERA_RETURN_IF_ERROR(r.expect_out(0, root, 0, 5000));
  }
  return absl::OkStatus();
}

// ---- Reductions of two ranks: small numbers, which have one result in any order and any type.

constexpr uint64_t kTerms = 1000;

template <class T>
T term(int rank, uint64_t i) {
  return static_cast<T>(static_cast<float>(1 + (i * 7 + static_cast<uint64_t>(rank) * 3) % 8));
}

template <class T>
T reduced(ReduceOp op, uint64_t i) {
  const auto a = static_cast<float>(term<T>(0, i));
  const auto b = static_cast<float>(term<T>(1, i));
  switch (op) {
    case ReduceOp::kSum:
      return static_cast<T>(a + b);
    case ReduceOp::kProd:
      return static_cast<T>(a * b);
    case ReduceOp::kMin:
      return static_cast<T>(std::min(a, b));
    case ReduceOp::kMax:
      return static_cast<T>(std::max(a, b));
    case ReduceOp::kAvg:
      return static_cast<T>((a + b) / 2);
  }
  return T(0);
}

// That `out` begins with the reduced elements from `first` on.
template <class T>
Status expect_reduced(Rank& r, ReduceOp op, uint64_t first, uint64_t count) {
  TESSERA_ASSIGN_OR_RETURN(const std::byte* const got, r.download());
  for (uint64_t i = 0; i < count; ++i) {
    const T want = reduced<T>(op, first + i);
    TESSERA_RETURN_IF_ERROR(
        expect(std::memcmp(got + i * sizeof(T), &want, sizeof(T)) == 0,
               absl::StrCat("element ", i, " of ", reduce_op_name(op), " of ",
                            dtype_name(dtype_of<T>()), " is that of both ranks")));
  }
  return absl::OkStatus();
}

template <class T>
Status reductions_of(Rank& r) {
  constexpr DType kDType = dtype_of<T>();
  std::vector<T> terms;
  for (uint64_t i = 0; i < kTerms; ++i) terms.push_back(term<T>(r.rank, i));
  TESSERA_RETURN_IF_ERROR(
      r.upload(reinterpret_cast<const std::byte*>(terms.data()), kTerms * sizeof(T)));
  for (int op_number = 0; op_number < kNumReduceOps; ++op_number) {
    const auto op = static_cast<ReduceOp>(op_number);
    if (!validate_reduction(op, kDType).ok()) continue;
    Api& nccl = r.job.nccl;
    TESSERA_RETURN_IF_ERROR(nccl.all_reduce(r.in, r.out, kTerms, kDType, op, r.comm, r.stream));
    TESSERA_RETURN_IF_ERROR(expect_reduced<T>(r, op, 0, kTerms));
    // In place.
    TESSERA_RETURN_IF_ERROR(r.job.cuda.copy(r.out, r.in, kTerms * sizeof(T), r.stream));
    TESSERA_RETURN_IF_ERROR(nccl.all_reduce(r.out, r.out, kTerms, kDType, op, r.comm, r.stream));
    TESSERA_RETURN_IF_ERROR(expect_reduced<T>(r, op, 0, kTerms));
    const int root = op_number % 2;
    std::byte* const to = r.rank == root ? r.out : nullptr;
    TESSERA_RETURN_IF_ERROR(nccl.reduce(r.in, to, kTerms - 1, kDType, op, root, r.comm, r.stream));
    if (r.rank == root) TESSERA_RETURN_IF_ERROR(expect_reduced<T>(r, op, 0, kTerms - 1));
    TESSERA_RETURN_IF_ERROR(r.settle());
    constexpr uint64_t kPart = kTerms / 2;
    TESSERA_RETURN_IF_ERROR(nccl.reduce_scatter(r.in, r.out, kPart, kDType, op, r.comm, r.stream));
    TESSERA_RETURN_IF_ERROR(expect_reduced<T>(r, op, static_cast<uint64_t>(r.rank) * kPart, kPart));
  }
  return absl::OkStatus();
}

Status reductions(Rank& r) {
  for (int dtype_number = 0; dtype_number < kNumDTypes; ++dtype_number) {
    TESSERA_RETURN_IF_ERROR(visit_dtype(static_cast<DType>(dtype_number), [&]<class T>() -> Status {
      if constexpr (std::is_same_v<T, bool>)
        return absl::OkStatus();  // NCCL has none
      else
        return reductions_of<T>(r);
    }));
  }
  return absl::OkStatus();
}

// min and max ignore NaN, unless there is nothing else.
Status extremes_of_nan(Rank& r) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  const float terms[2][3] = {{kNaN, 5, kNaN}, {3, kNaN, kNaN}};
  TESSERA_RETURN_IF_ERROR(
      r.upload(reinterpret_cast<const std::byte*>(terms[r.rank]), sizeof(terms[0])));
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    TESSERA_RETURN_IF_ERROR(
        r.job.nccl.all_reduce(r.in, r.out, 3, DType::kFloat32, op, r.comm, r.stream));
    TESSERA_ASSIGN_OR_RETURN(const std::byte* const got, r.download());
    float values[3];
    std::memcpy(values, got, sizeof(values));
    TESSERA_RETURN_IF_ERROR(expect(values[0] == 3 && values[1] == 5, "numbers beside NaN"));
    TESSERA_RETURN_IF_ERROR(expect(std::isnan(values[2]), "of NaN alone NaN"));
  }
  return absl::OkStatus();
}

// Memory of NCCL's allocator serves as any other.
Status memory_of_its_allocator(Rank& r) {
  Api& nccl = r.job.nccl;
  constexpr uint64_t kSlab = 4 << 20;
  TESSERA_ASSIGN_OR_RETURN(std::byte* const slab, nccl.mem_alloc(kSlab));
  TESSERA_RETURN_IF_ERROR(
      expect(reinterpret_cast<uintptr_t>(slab) % 256 == 0, "memory is aligned to 256 bytes"));
  std::byte* const from = slab + 512;
  std::byte* const to = slab + (2 << 20);
  TESSERA_RETURN_IF_ERROR(r.job.cuda.copy(from, r.in, kMostBytes, r.stream));
  const uint64_t part = 4096;
  TESSERA_RETURN_IF_ERROR(nccl.all_gather(from, to, part, r.comm, r.stream));
  TESSERA_RETURN_IF_ERROR(r.settle());
  TESSERA_RETURN_IF_ERROR(r.job.cuda.copy(r.out, to, 2 * part, r.stream));
  for (int k = 0; k < 2; ++k) {
    TESSERA_RETURN_IF_ERROR(r.expect_out(static_cast<uint64_t>(k) * part, k, 0, part));
  }
  const int peer = 1 - r.rank;
  TESSERA_RETURN_IF_ERROR(nccl.group_start());
  TESSERA_RETURN_IF_ERROR(nccl.send(from + 3, 999, peer, r.comm, r.stream));
  TESSERA_RETURN_IF_ERROR(nccl.recv(to, 999, peer, r.comm, r.stream));
  TESSERA_RETURN_IF_ERROR(nccl.group_end());
  TESSERA_RETURN_IF_ERROR(r.settle());
  TESSERA_RETURN_IF_ERROR(r.job.cuda.copy(r.out, to, 999, r.stream));
  TESSERA_RETURN_IF_ERROR(r.expect_out(0, peer, 3, 999));
  return nccl.mem_free(slab);
}

// A communicator that waits in vain is revoked: its stream finishes, and a new communicator of the
// same ranks works. The ranks have met before: NCCL may connect two of them at their first
// operation, and that call is in progress until both have called.
Status revoked_and_made_anew(Rank& r) {
  TESSERA_RETURN_IF_ERROR(broadcasts(r));
  if (r.rank == 0) {
    TESSERA_ASSIGN_OR_RETURN(r.job.id, r.job.nccl.get_unique_id());
  }
  if (r.rank != 0) {
    TESSERA_RETURN_IF_ERROR(r.job.nccl.broadcast(r.in, r.out, 5000, 0, r.comm, r.stream));
    TESSERA_RETURN_IF_ERROR(r.settle());
  }
  r.job.together.arrive_and_wait();
  TESSERA_RETURN_IF_ERROR(r.job.nccl.comm_revoke(r.comm));
  // A peer that has revoked closes its sockets, which may come here as an error of the network.
  const Status settled = r.settle();
  if (!absl::IsUnavailable(settled)) TESSERA_RETURN_IF_ERROR(settled);
  TESSERA_RETURN_IF_ERROR(r.drain());
  TESSERA_RETURN_IF_ERROR(r.job.nccl.comm_destroy(r.comm));
  TESSERA_RETURN_IF_ERROR(r.join(r.job.id));
  return ring(r);
}

// Replaces the communicator by abort, which needs no other rank.
Status aborted_and_made_anew(Rank& r) {
  TESSERA_RETURN_IF_ERROR(ring(r));
  if (r.rank == 0) {
    TESSERA_ASSIGN_OR_RETURN(r.job.id, r.job.nccl.get_unique_id());
  }
  if (r.rank == 1) {
    TESSERA_RETURN_IF_ERROR(r.job.nccl.group_start());
    TESSERA_RETURN_IF_ERROR(r.job.nccl.recv(r.out, 100, 0, r.comm, r.stream));
    TESSERA_RETURN_IF_ERROR(r.job.nccl.group_end());
    TESSERA_RETURN_IF_ERROR(r.settle());
  }
  r.job.together.arrive_and_wait();
  TESSERA_RETURN_IF_ERROR(r.job.nccl.comm_abort(r.comm));
  TESSERA_RETURN_IF_ERROR(r.drain());
  TESSERA_RETURN_IF_ERROR(r.join(r.job.id));
  return ring(r);
}

// A communicator is not there before all ranks have called.
Status waits_for_all_ranks(Rank& r) {
  if (r.rank == 0) {
    TESSERA_ASSIGN_OR_RETURN(r.job.id, r.job.nccl.get_unique_id());
  }
  r.job.together.arrive_and_wait();
  CommHandle second = nullptr;
  const auto begin = [&]() -> Status {
    TESSERA_ASSIGN_OR_RETURN(second, r.job.nccl.comm_init_rank(2, r.job.id, r.rank));
    return absl::OkStatus();
  };
  if (r.rank == 0) {
    TESSERA_RETURN_IF_ERROR(begin());
    TESSERA_ASSIGN_OR_RETURN(const bool alone, r.job.nccl.poll(second));
    TESSERA_RETURN_IF_ERROR(expect(!alone, "one of two ranks is not a communicator"));
  }
  r.job.together.arrive_and_wait();
  if (r.rank == 1) TESSERA_RETURN_IF_ERROR(begin());
  std::swap(r.comm, second);
  TESSERA_RETURN_IF_ERROR(r.settle());
  TESSERA_RETURN_IF_ERROR(r.leave());
  std::swap(r.comm, second);
  return absl::OkStatus();
}

}  // namespace

void Meeting::open(int num_ranks) {
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&barrier, &attributes, static_cast<unsigned>(num_ranks));
  pthread_barrierattr_destroy(&attributes);
}

Status ContractCase::body(cuda::Api& cuda, Api& nccl, bool shares_gpu) const {
  Meeting meeting;
  meeting.open(num_ranks);
  std::vector<Status> results(num_ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back(
        [&, rank] { results[rank] = run_rank(cuda, nccl, meeting, rank, shares_gpu ? 0 : rank); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& result : results) TESSERA_RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

std::vector<ContractCase> contract_cases() {
  return {
      make_case("group_of_sends_and_receives", 3, ring),
      make_case("several_messages_between_two", 2, several_messages),
      make_case("ranks_without_a_part_stay_away", 3, others_stay_away),
      make_case("all_gather", 3, all_gathers),
      make_case("broadcast", 3, broadcasts),
      make_case("reductions", 2, reductions),
      make_case("min_and_max_ignore_nan", 2, extremes_of_nan),
      make_case("memory_of_its_allocator", 2, memory_of_its_allocator),
      make_case("revoked_and_made_anew", 2, revoked_and_made_anew),
      make_case("aborted_and_made_anew", 2, aborted_and_made_anew),
      make_case("a_communicator_waits_for_all_ranks", 2, waits_for_all_ranks),
  };
}

}  // namespace tessera::nccl
