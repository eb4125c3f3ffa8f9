// SPDX-License-Identifier: Apache-2.0
//
// FakeNccl: the NCCL of a machine without a GPU, for tests, over the fake of CUDA.
//
//   auto cuda = FakeCuda::create({.num_gpus = 4});
//   auto nccl = FakeNccl::create(cuda);        one for all clients of a process
//   ... each client's backend works with it; communicators meet by their unique ids ...
//   EXPECT_THAT(nccl->misuses(), IsEmpty());
//
// Work of a stream runs when the stream reaches it, and lasts until the other end has reached its
// part, however long that takes. Like NCCL's kernels it spins, and holds up all later work of the
// stream, until it is done or its own communicator is revoked or aborted. The other ranks do not
// learn of that.
//
// It adds as NCCL's rings do, which is not as our kernels do: the terms of a chunk go from rank to
// rank, beginning after its owner, and each step rounds to the type. So a test that requires the
// bits of ascending order from NCCL's sums fails here too.
//
// Calls whose result NCCL leaves undefined, or on which it hangs, are recorded as misuses:
//   - two ends that name different sizes, calls, types, reductions or roots;
//   - two GPUs that meet by several communicators in different orders;
//   - use of a communicator that does not exist yet, or was revoked, finalised or aborted;
//     destruction of a communicator with work in flight;
//   - a reduction of bool, or an average of integers;
//   - a thread that gives work to a communicator which another thread made, or while another
//     thread does so;
//   - a send or receive outside of a group while an earlier send or receive of the communicator is
//     under way, and calls of one thread for several ranks of a communicator outside of one group;
//   - memory of mem_free() that is not from mem_alloc(); memory that is freed in flight, or belongs
//     to another GPU (FakeCuda's own);
//   - a revoke while the last call is still in progress, or after it failed, with no earlier work
//     in flight: NCCL then uses memory that it has freed;
//   - a call that makes, ends or frees an object from a thread that has set no device.
// NCCL itself refuses several ranks on one GPU; so does the fake, unless its ranks are processes
// that share GPUs (gpu_sharing.h): then each thread that makes communicators stands for one.
//
// As in NCCL, work whose group_end() is in progress is given to the stream when poll() says that
// the call is done. An abort and a destroy free memory as CUDA does, and so wait for the GPU and
// its peers. mem_alloc() and mem_free() do not wait, unless Options::uses_cumem is false.
//
// Faults: stall() makes a call continue in the background for a while. break_link() ends a
// communicator by an error of the network. hang_inits(), hang_aborts() and hang_revokes() keep
// these calls from returning. Options::shm_bytes lets /dev/shm run out. Thread-safe.
#ifndef TESSERA_COLLECTIVES_NCCL_FAKE_FAKE_NCCL_H_
#define TESSERA_COLLECTIVES_NCCL_FAKE_FAKE_NCCL_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/status.h"
#include "collectives/nccl/api.h"
#include "collectives/nccl/fake/fake_nccl_state.h"
#include "device/cuda/fake/fake_cuda.h"

namespace tessera::nccl {

class FakeNccl : public Api {
 public:
  struct Options {
    bool shares_gpus = false;
    // The value of NCCL_CUMEM_ENABLE.
    bool uses_cumem = true;
    // The size of /dev/shm. Each rank of a communicator that uses sockets, as all do that share
    // GPUs, takes kShmBytesOfRank while it exists.
    uint64_t shm_bytes = std::numeric_limits<uint64_t>::max();
  };
  static constexpr uint64_t kShmBytesOfRank = 34'210'176;  // sizeof(ncclProxyOpsPool), 2.28.9
  static std::shared_ptr<FakeNccl> create(std::shared_ptr<cuda::FakeCuda> cuda);
  static std::shared_ptr<FakeNccl> create(std::shared_ptr<cuda::FakeCuda> cuda,
                                          const Options& options);
  // Ends the work under way, and waits until the streams have passed it.
  ~FakeNccl() override;

  std::vector<std::string> misuses() const;
  int num_calls(absl::string_view function) const;
  // Communicators that were made and not freed.
  int num_communicators() const;
  // The number of live allocations of mem_alloc().
  int num_allocations() const;

  // The next `num_calls` calls of the function ("comm_init_rank", "group_end", "comm_revoke") are
  // each in progress for `num_polls` polls. A call outside of a group ends a group of its own.
  void stall(absl::string_view function, int num_calls, int num_polls);
  // The `nth` operation that is given to a stream from now on (1 is the next) never ends, and its
  // communicator has this error.
  void break_link(int nth, Status error);
  // From now on comm_init_rank() does not return, until release_inits().
  void hang_inits();
  void release_inits();
  // From now on comm_abort() does not return, until release_aborts().
  void hang_aborts();
  void release_aborts();
  // From now on comm_revoke() does not return, until release_revokes().
  void hang_revokes();
  void release_revokes();

  StatusOr<UniqueId> get_unique_id() override;
  StatusOr<CommHandle> comm_init_rank(int num_ranks, const UniqueId& id, int rank) override;
  StatusOr<bool> poll(CommHandle comm) override;
  StatusOr<std::byte*> mem_alloc(uint64_t size_bytes) override;
  Status mem_free(std::byte* memory) override;
  Status group_start() override;
  Status group_end() override;
  Status send(const std::byte* from, uint64_t num_bytes, int peer, CommHandle comm,
              StreamHandle stream) override;
  Status recv(std::byte* to, uint64_t num_bytes, int peer, CommHandle comm,
              StreamHandle stream) override;
  Status all_gather(const std::byte* from, std::byte* to, uint64_t num_bytes, CommHandle comm,
                    StreamHandle stream) override;
  Status broadcast(const std::byte* from, std::byte* to, uint64_t num_bytes, int root,
                   CommHandle comm, StreamHandle stream) override;
  Status all_reduce(const std::byte* from, std::byte* to, uint64_t count, DType dtype, ReduceOp op,
                    CommHandle comm, StreamHandle stream) override;
  Status reduce(const std::byte* from, std::byte* to, uint64_t count, DType dtype, ReduceOp op,
                int root, CommHandle comm, StreamHandle stream) override;
  Status reduce_scatter(const std::byte* from, std::byte* to, uint64_t count, DType dtype,
                        ReduceOp op, CommHandle comm, StreamHandle stream) override;
  Status comm_revoke(CommHandle comm) override;
  Status comm_finalize(CommHandle comm) override;
  Status comm_destroy(CommHandle comm) override;
  Status comm_abort(CommHandle comm) override;

 private:
  using World = fake::World;
  using Comm = fake::Comm;
  using Letter = fake::Letter;
  using Operation = fake::Operation;
  using Transfer = fake::Transfer;
  using Reduction = fake::Reduction;
  using Call = fake::Call;
  using ThreadGroup = fake::ThreadGroup;

  FakeNccl(std::shared_ptr<cuda::FakeCuda> cuda, const Options& options)
      : cuda_(std::move(cuda)), options_(options) {}
  static ThreadGroup& thread_group();

  // All below require mutex_, except run().
  Status misuse(std::string what);
  // Counts the call, and finds its communicator, if it may be used in this way.
  StatusOr<std::shared_ptr<Comm>> enter(absl::string_view function, CommHandle comm);
  StatusOr<std::shared_ptr<Comm>> enter_for_work(absl::string_view function, CommHandle comm);
  void take_stall(absl::string_view function, Comm& comm);
  // A call that does nothing yet, of a communicator that may be given work.
  StatusOr<Call> begin_call(absl::string_view function, CommHandle comm, StreamHandle stream);
  StatusOr<Call> begin_reduction(absl::string_view function, DType dtype, ReduceOp op,
                                 CommHandle comm, StreamHandle stream);
  Status submit_reduction(Call call, Reduction reduction);
  // Adds the call to the thread's group; without one it is a group of its own.
  Status submit(Call call);
  Status check_ungrouped(const Call& call);
  // Gives the stream the calls that a call in progress has held back.
  void launch_deferred(Comm& comm);
  // Whether /dev/shm has room for one more rank.
  bool has_shm() const;
  Status launch_group();
  // Calls of one communicator that end together.
  Status launch_or_defer(Comm& comm, std::vector<Call> calls);
  // Waits as cudaFree() does, at the end of the thread's group if there is one. Without the lock.
  void wait_to_free(int gpu);
  // Gives the calls of one communicator to its stream.
  Status launch(std::vector<Call> calls);
  StatusOr<std::shared_ptr<Operation>> merge(std::vector<Call> calls);
  // The number of a seat, the fake's unit of NCCL's check: the GPU and, where processes share it,
  // the process.
  int seat_of(int gpu);
  // Checks that both meet in the same communicators in the same order.
  void log_meeting(const World& world, const Comm& comm, const Comm& peer);
  void forget_meetings(const World& world);
  // Called by the stream.
  void run(const std::shared_ptr<Comm>& comm, Operation& operation);
  // Requires the lock on mutex_, which it releases for the copy.
  void receive(std::unique_lock<std::mutex>& lock, Comm& comm, const Transfer& transfer);
  void end_work(Comm& comm);

  const std::shared_ptr<cuda::FakeCuda> cuda_;
  const Options options_;
  mutable std::mutex mutex_;         // guards all members below, and the objects behind the handles
  std::condition_variable changed_;  // anything of it
  uint64_t next_id_ = 1;
  uintptr_t next_handle_ = 0x2000;  // a handle that was freed is never given out again
  std::map<uint64_t, std::shared_ptr<World>> worlds_;
  std::map<CommHandle, std::shared_ptr<Comm>> comms_;
  std::map<std::byte*, uint64_t> allocations_;
  std::map<std::pair<int, std::thread::id>, int> seats_;
  // By (seat, peer's): the worlds in which the seat is ahead of its peer.
  std::map<std::pair<int, int>, std::deque<uint64_t>> ahead_;
  std::map<std::string, int> calls_;
  std::map<std::string, std::pair<int, int>> stalls_;  // calls, polls
  std::map<int, Status> broken_links_;                 // by number of the operation
  int num_operations_ = 0;
  int num_queued_ = 0;  // operations that streams were given and have not done
  bool inits_hang_ = false;
  bool aborts_hang_ = false;
  bool revokes_hang_ = false;
  std::vector<std::string> misuses_;
};

}  // namespace tessera::nccl

#endif  // TESSERA_COLLECTIVES_NCCL_FAKE_FAKE_NCCL_H_
