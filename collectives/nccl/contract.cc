// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/contract.h"

#include <barrier>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace tessera::nccl {
namespace {

constexpr uint64_t kMostBytes = 1 << 16;

Status expect(bool condition, absl::string_view what) {
  return condition ? absl::OkStatus() : absl::InternalError(absl::StrCat("not so: ", what));
}

// Asks until it is so, for half a minute.
Status wait_until(const std::function<StatusOr<bool>()>& is_so, absl::string_view what) {
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (true) {
    TESSERA_ASSIGN_OR_RETURN(const bool so, is_so());
    if (so) return absl::OkStatus();
    if (absl::Now() > deadline) return absl::DeadlineExceededError(what);
    std::this_thread::yield();
  }
}

// What the ranks of a case share.
struct Job {
  cuda::Api& cuda;
  Api& nccl;
  int num_ranks;
  UniqueId id;
  std::barrier<> together;
};

// One rank: a GPU with a stream, memory on both sides, and its communicator.
class Rank {
 public:
  static StatusOr<std::unique_ptr<Rank>> create(Job& job, int rank) {
    std::unique_ptr<Rank> self(new Rank(job, rank));
    TESSERA_RETURN_IF_ERROR(job.cuda.set_device(rank));
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
  // That `num_bytes` of `out` from `to` on are those of a rank from `from` on.
  Status expect_out(uint64_t to, int source, uint64_t from, uint64_t num_bytes) {
    TESSERA_RETURN_IF_ERROR(settle());
    TESSERA_RETURN_IF_ERROR(job.cuda.copy(host_, out, kMostBytes, stream));
    TESSERA_RETURN_IF_ERROR(drain());
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
  const auto run = [num_ranks, body = std::move(body)](cuda::Api& cuda, Api& nccl) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const UniqueId id, nccl.get_unique_id());
    Job job = {cuda, nccl, num_ranks, id, std::barrier<>(num_ranks)};
    std::vector<Status> results(num_ranks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < num_ranks; ++rank) {
      threads.emplace_back([&, rank] { results[rank] = run_rank(job, rank, body); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Status& result : results) TESSERA_RETURN_IF_ERROR(result);
    return absl::OkStatus();
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

// One that waits in vain is revoked: its stream comes to an end, and a new communicator of the same
// ranks works.
Status revoked_and_made_anew(Rank& r) {
  if (r.rank == 0) {
    TESSERA_ASSIGN_OR_RETURN(r.job.id, r.job.nccl.get_unique_id());
  }
  if (r.rank != 0) {
    TESSERA_RETURN_IF_ERROR(r.job.nccl.broadcast(r.in, r.out, 5000, 0, r.comm, r.stream));
    TESSERA_RETURN_IF_ERROR(r.settle());
  }
  r.job.together.arrive_and_wait();
  TESSERA_RETURN_IF_ERROR(r.job.nccl.comm_revoke(r.comm));
  TESSERA_RETURN_IF_ERROR(r.settle());
  TESSERA_RETURN_IF_ERROR(r.drain());
  TESSERA_RETURN_IF_ERROR(r.job.nccl.comm_destroy(r.comm));
  TESSERA_RETURN_IF_ERROR(r.join(r.job.id));
  return ring(r);
}

// The same by abort, which needs nobody else.
Status aborted_and_made_anew(Rank& r) {
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

// A communicator is not there before all ranks have come.
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
    TESSERA_RETURN_IF_ERROR(expect(!alone, "one of two ranks is no communicator"));
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

std::vector<ContractCase> contract_cases() {
  return {
      make_case("group_of_sends_and_receives", 3, ring),
      make_case("several_messages_between_two", 2, several_messages),
      make_case("ranks_without_a_part_stay_away", 3, others_stay_away),
      make_case("all_gather", 3, all_gathers),
      make_case("broadcast", 3, broadcasts),
      make_case("revoked_and_made_anew", 2, revoked_and_made_anew),
      make_case("aborted_and_made_anew", 2, aborted_and_made_anew),
      make_case("a_communicator_waits_for_all_ranks", 2, waits_for_all_ranks),
  };
}

}  // namespace tessera::nccl
