// SPDX-License-Identifier: Apache-2.0
//
// Api: the functions of NCCL that Tessera uses, with the meaning that NCCL gives them.
//
//   StatusOr<CommHandle> comm = api.comm_init_rank(3, id, 1);     returns at once
//   while (!*api.poll(*comm)) nap();                              until all ranks have called
//   api.group_start();
//   api.send(bytes, n, 2, *comm, stream);
//   api.recv(other, m, 0, *comm, stream);
//   api.group_end();                                              gives the stream one operation
//
// Two implementations: NCCL's own (open_api.h), one call per function, and the fake
// (fake/fake_nccl.h), which runs on any machine. contract.h tests both by one table.
//
// Communicators do not block: a call that has more to do returns OK, and poll() tells when it is
// done. Moved bytes have no type. Terms that NCCL adds have a type of NCCL, which has all of ours
// except bool.
//
// Thread rule, NCCL's:
// - Calls for the communicators of one GPU must be made by one thread at a time.
// - Calls that give work to a stream must be made by the thread that made the communicator.
// - The ends (revoke, finalize, destroy, abort) may run at the same time as calls for other
//   communicators.
// - As in CUDA, the GPU is the calling thread's current one, and every thread sets it.
//
// Errors are the errors of NCCL, with the function's name and NCCL's last message: Unavailable
// where a peer or the network is gone, Internal for errors of CUDA and the system,
// FailedPrecondition where NCCL refuses the call (several ranks on one GPU).
#ifndef TESSERA_COLLECTIVES_NCCL_API_H_
#define TESSERA_COLLECTIVES_NCCL_API_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/status.h"
#include "device/cuda/api.h"

namespace tessera::nccl {

// ncclComm_t and ncclUniqueId, without NCCL's header.
using CommHandle = struct OpaqueComm*;
using UniqueId = std::array<std::byte, 128>;
using cuda::StreamHandle;

class Api {
 public:
  virtual ~Api() = default;

  // The id that the ranks of one new communicator share. It listens in this process, which must
  // have a rank of the communicator, and serves once. ncclGetUniqueId.
  virtual StatusOr<UniqueId> get_unique_id() = 0;
  // Begins to make a communicator's rank on the current GPU. The rank is made when poll() says so,
  // which needs all ranks. ncclCommInitRankConfig with blocking = 0 and splitShare = 0.
  virtual StatusOr<CommHandle> comm_init_rank(int num_ranks, const UniqueId& id, int rank) = 0;
  // Whether nothing is in progress; the communicator's error, once it has one.
  // ncclCommGetAsyncError.
  virtual StatusOr<bool> poll(CommHandle comm) = 0;

  // Memory of the current GPU, aligned to 256 bytes, from an allocator that waits for no GPU
  // (check_allocator()); NCCL rounds sizes up to 2 MiB. ResourceExhausted where there is no more.
  // ncclMemAlloc, ncclMemFree.
  virtual StatusOr<std::byte*> mem_alloc(uint64_t size_bytes) = 0;
  virtual Status mem_free(std::byte* memory) = 0;

  // Calls of this thread between the two are one operation. ncclGroupStart, ncclGroupEnd.
  virtual Status group_start() = 0;
  virtual Status group_end() = 0;

  // Both ends name the same number of bytes. Several transfers between two ranks are matched in
  // order. ncclSend, ncclRecv.
  virtual Status send(const std::byte* from, uint64_t num_bytes, int peer, CommHandle comm,
                      StreamHandle stream) = 0;
  virtual Status recv(std::byte* to, uint64_t num_bytes, int peer, CommHandle comm,
                      StreamHandle stream) = 0;
  // Equally many bytes of each rank; `from` may be its place in `to`. ncclAllGather.
  virtual Status all_gather(const std::byte* from, std::byte* to, uint64_t num_bytes,
                            CommHandle comm, StreamHandle stream) = 0;
  // Only the root's `from` is read; it may be `to` there. ncclBroadcast.
  virtual Status broadcast(const std::byte* from, std::byte* to, uint64_t num_bytes, int root,
                           CommHandle comm, StreamHandle stream) = 0;

  // Reductions in an order that is NCCL's own, with a rounding to the type after each step; equal
  // on all ranks that get the same element. Any dtype but bool. avg, of floats alone, adds terms
  // that were multiplied by the rounded 1 / n. min and max ignore NaN, and may give either zero.
  //
  // `from` may be `to`. ncclAllReduce.
  virtual Status all_reduce(const std::byte* from, std::byte* to, uint64_t count, DType dtype,
                            ReduceOp op, CommHandle comm, StreamHandle stream) = 0;
  // Only the root's `to` is written; it may be `from` there. ncclReduce.
  virtual Status reduce(const std::byte* from, std::byte* to, uint64_t count, DType dtype,
                        ReduceOp op, int root, CommHandle comm, StreamHandle stream) = 0;
  // Rank r gets part r of equally many elements for each; `to` may be its place in `from`.
  // ncclReduceScatter.
  virtual Status reduce_scatter(const std::byte* from, std::byte* to, uint64_t count, DType dtype,
                                ReduceOp op, CommHandle comm, StreamHandle stream) = 0;

  // Ends the work under way, so that streams finish; the results of that work are undefined then.
  // poll() tells when this is done, unless the communicator has an error. ncclCommRevoke.
  // - Only comm_destroy() and comm_abort() may follow.
  // - It joins a thread of NCCL, which may be in a call of CUDA that waits.
  // - It must not be called while the last call is in progress, nor after that failed, unless
  //   earlier work is in flight: ncclCommRevoke of 2.28.9 to 2.30.7 then uses freed memory.
  virtual Status comm_revoke(CommHandle comm) = 0;
  // Begins an orderly end, which needs all ranks; poll() tells when it is done. ncclCommFinalize.
  virtual Status comm_finalize(CommHandle comm) = 0;
  // Frees a communicator that was finalised or revoked; needs the ranks of the host. Ends the use
  // of the handle. ncclCommDestroy.
  virtual Status comm_destroy(CommHandle comm) = 0;
  // Ends the work under way, and frees the communicator, whichever ranks remain. ncclCommAbort.
  virtual Status comm_abort(CommHandle comm) = 0;
};

}  // namespace tessera::nccl

#endif  // TESSERA_COLLECTIVES_NCCL_API_H_
