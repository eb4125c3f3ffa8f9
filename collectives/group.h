// SPDX-License-Identifier: Apache-2.0
//
// Group: an ordered list of devices that run collectives together, as one member sees it.
//
//   StatusOr<Group> group = client.group({0, 1, 2, 3});
//   std::vector<float> in(1024, 1.0f), out(1024);
//   Work w = group->all_reduce(in, out, ReduceOp::kSum);
//   Status s = w.wait(absl::Seconds(5));
//
// Memory is a vector, an array, a span or a DeviceSpan of Client::allocate(); {} is no memory
// (memory.h). The element type follows from it. Each operation has a second form below the first,
// which takes spans and whose type can be named: all_reduce<float>(in, out, op) accepts everything
// that converts to spans of float. The forms make this header long.
//
// P = size(), r = position(), n = elements. Where an operation takes counts, part k has counts[k]
// elements; without counts all parts are equal. Elements of the memory of member r:
//
//   operation        in                     out                        in place
//   all_reduce       n                      n                          out == in
//   reduce           n                      n, at the root             out == in
//   broadcast        n, at the root         n                          out == in
//   all_gather       part r                 all parts                  in is part r of out
//   reduce_scatter   all parts              part r                     out is part r of in
//   gather           part r                 all parts, at the root     in is part r of out
//   scatter          all parts, at the root part r                     out is part r of in
//   all_to_all       all parts that it sends, all parts that it gets   never
//   exchange         in_box                 out_box                    never
//
// "At the root": the other members may pass any memory or none, and it is not touched. Where the
// table says "in place", in and out may overlap in exactly this way; any other overlap is
// InvalidArgument.
//
// Invariants:
//   1. members call the same operations in the same order; where they do not, all of them get
//      InvalidArgument naming the field and two clients, before a byte moves;
//   2. terms are added in ascending position, for every element and on every run: results are
//      bitwise equal on all members. f16 and bf16 accumulate in f32 and round once; integers wrap;
//      max and min ignore NaN; avg is the sum divided once. (A program can leave the order to NCCL:
//      ClientOptions::backend);
//   3. all members get the same Status of one operation. After a failure the group can be used
//      again, unless a member is lost. Exceptions:
//        lent inputs             where the other members only read a tensor of the member, or read
//                                nothing, the operation ends for the member when its own part ends;
//                                a loss or a deadline after that is an error of the others only
//        deadlines in a queue    members that give up an operation while earlier ones are not over
//                                may get texts that differ
//        a client far behind     gets "given up without this client" for the calls that the
//                                others have given up, and then joins their present call; its
//                                barrier joins theirs immediately
//
// Calls are asynchronous: they enqueue on the member's device and return. Memory must stay valid,
// and have no other writer, until the Work is done. Zero elements are legal, with null pointers
// too.
//
// Functions may be called from any thread. A member's operations run on its device, in the order of
// the calls. Two members of one client are two devices with independent orders: one thread may
// start the operations of both, or each member may have a thread. Threads that call the same member
// at the same time leave its order to chance, which invariant 1 does not allow.
//
// Late writes: the one case in which the Work is done, and out is not the caller's again.
// - Which operations: an all_reduce, and a reduce at its root, whose out is a DeviceSpan or the
//   memory of a tensor (what from_function() and local_map() let a caller write).
// - When: after Unavailable or DeadlineExceeded. If all members had arrived, a member of another
//   client of the host that was held up may write its part of out later, as long as its process
//   lives.
// - What to do: drop the DeviceSpan or the tensor, and use another one. No later tensor gets its
//   memory. A vector or another array of the program is not written late.
#ifndef TESSERA_COLLECTIVES_GROUP_H_
#define TESSERA_COLLECTIVES_GROUP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/public.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "collectives/box_pull.h"
#include "collectives/memory.h"
#include "collectives/op_kind.h"
#include "collectives/work.h"
#include "device/device_span.h"

namespace TESSERA_PUBLIC tessera {

namespace internal {
class GroupMember;
struct GroupAccess;
}  // namespace internal

class Group {
 public:
  // An empty group, as a group that was moved from is: without members; every operation fails with
  // FailedPrecondition.
  Group() = default;
  bool valid() const { return member_ != nullptr; }

  int size() const { return static_cast<int>(device_ids().size()); }
  int position() const;
  absl::Span<const int> device_ids() const;

  // "group of devices 0-3, 9, as device 2".
  std::string to_string() const;
  friend std::ostream& operator<<(std::ostream& out, const Group& group) {
    return out << group.to_string();
  }

  // Each out = the reduction of all ins. A member reduces one chunk of 1/P of the elements: it
  // reads the chunk in every in, and writes it to every out. MPI_Allreduce, ncclAllReduce.
  template <class In = internal::NoMemory, OutMemoryFor<In> Out = internal::NoMemory>
  Work all_reduce(const In& in, Out&& out, ReduceOp op) const {
    const auto spans = internal::spans_of(in, out);
    return all_reduce(spans.in, spans.out, op);
  }
  template <HasDType T>
  Work all_reduce(absl::Span<const T> in, absl::Span<T> out, ReduceOp op) const {
    return start({.kind = OpKind::kAllReduce, .op = op}, internal::memory_of<T>(in, out));
  }
  // In place. MPI_IN_PLACE.
  template <InOutMemory InOut>
  Work all_reduce(InOut&& inout, ReduceOp op) const {
    return all_reduce(internal::span_of(inout), op);
  }
  template <HasDType T>
  Work all_reduce(absl::Span<T> inout, ReduceOp op) const {
    return all_reduce<T>(inout, inout, op);
  }

  // The root's out = the reduction of all ins. A member reduces one chunk of 1/P of the elements:
  // it reads the chunk in every in, and writes it to the root's out. MPI_Reduce.
  template <class In = internal::NoMemory, OutMemoryFor<In> Out = internal::NoMemory>
  Work reduce(const In& in, Out&& out, ReduceOp op, int root) const {
    const auto spans = internal::spans_of(in, out);
    return reduce(spans.in, spans.out, op, root);
  }
  template <HasDType T>
  Work reduce(absl::Span<const T> in, absl::Span<T> out, ReduceOp op, int root) const {
    return start({.kind = OpKind::kReduce, .op = op, .root = root},
                 internal::memory_of<T>(in, out));
  }
  // In place at the root; the other members' memory is only read.
  template <InOutMemory InOut>
  Work reduce(InOut&& inout, ReduceOp op, int root) const {
    return reduce(internal::span_of(inout), op, root);
  }
  template <HasDType T>
  Work reduce(absl::Span<T> inout, ReduceOp op, int root) const {
    return reduce<T>(inout, inout, op, root);
  }

  // Each out = the root's in, of which each member reads all elements. MPI_Bcast, ncclBroadcast.
  template <class In = internal::NoMemory, OutMemoryFor<In> Out = internal::NoMemory>
  Work broadcast(const In& in, Out&& out, int root) const {
    const auto spans = internal::spans_of(in, out);
    return broadcast(spans.in, spans.out, root);
  }
  template <HasDType T>
  Work broadcast(absl::Span<const T> in, absl::Span<T> out, int root) const {
    return start({.kind = OpKind::kBroadcast, .root = root}, internal::memory_of<T>(in, out));
  }
  // In place at the root; the other members' memory is only written.
  template <InOutMemory InOut>
  Work broadcast(InOut&& inout, int root) const {
    return broadcast(internal::span_of(inout), root);
  }
  template <HasDType T>
  Work broadcast(absl::Span<T> inout, int root) const {
    return broadcast<T>(inout, inout, root);
  }

  // Each out = the ins one after another. A member reads all parts. MPI_Allgather(v).
  template <class In = internal::NoMemory, OutMemoryFor<In> Out = internal::NoMemory>
  Work all_gather(const In& in, Out&& out, absl::Span<const int64_t> counts = {}) const {
    const auto spans = internal::spans_of(in, out);
    return all_gather(spans.in, spans.out, counts);
  }
  template <HasDType T>
  Work all_gather(absl::Span<const T> in, absl::Span<T> out,
                  absl::Span<const int64_t> counts = {}) const {
    return start({.kind = OpKind::kAllGather, .counts = counts}, internal::memory_of<T>(in, out));
  }
  // In place, of equal parts: the member's own part of `inout` is its in.
  template <InOutMemory InOut>
  Work all_gather(InOut&& inout) const {
    return all_gather(internal::span_of(inout));
  }
  template <HasDType T>
  Work all_gather(absl::Span<T> inout) const {
    const size_t part = valid() ? inout.size() / size() : 0;
    return all_gather<T>(inout.subspan(part * position(), part), inout);
  }

  // Member k's out = part k of the reduction of all ins. A member reads its own part of every in.
  // In place the result is where NCCL has it, and not at the front, as MPI has it; so there is no
  // form with one argument. MPI_Reduce_scatter(_block), ncclReduceScatter.
  template <class In = internal::NoMemory, OutMemoryFor<In> Out = internal::NoMemory>
  Work reduce_scatter(const In& in, Out&& out, ReduceOp op,
                      absl::Span<const int64_t> counts = {}) const {
    const auto spans = internal::spans_of(in, out);
    return reduce_scatter(spans.in, spans.out, op, counts);
  }
  template <HasDType T>
  Work reduce_scatter(absl::Span<const T> in, absl::Span<T> out, ReduceOp op,
                      absl::Span<const int64_t> counts = {}) const {
    return start({.kind = OpKind::kReduceScatter, .op = op, .counts = counts},
                 internal::memory_of<T>(in, out));
  }

  // Member k's out = part k of each in, one after another: equal parts. A member reads its own part
  // of every in. MPI_Alltoall.
  template <class In = internal::NoMemory, OutMemoryFor<In> Out = internal::NoMemory>
  Work all_to_all(const In& in, Out&& out) const {
    const auto spans = internal::spans_of(in, out);
    return all_to_all(spans.in, spans.out);
  }
  template <HasDType T>
  Work all_to_all(absl::Span<const T> in, absl::Span<T> out) const {
    return start({.kind = OpKind::kAllToAll}, internal::memory_of<T>(in, out));
  }
  // As above, with send_counts[k] elements to member k and recv_counts[k] from it. MPI_Alltoallv.
  template <class In = internal::NoMemory, OutMemoryFor<In> Out = internal::NoMemory>
  Work all_to_all(const In& in, Out&& out, absl::Span<const int64_t> send_counts,
                  absl::Span<const int64_t> recv_counts) const {
    const auto spans = internal::spans_of(in, out);
    return all_to_all(spans.in, spans.out, send_counts, recv_counts);
  }
  template <HasDType T>
  Work all_to_all(absl::Span<const T> in, absl::Span<T> out, absl::Span<const int64_t> send_counts,
                  absl::Span<const int64_t> recv_counts) const {
    return start({.kind = OpKind::kAllToAll,
                  .has_equal_parts = false,
                  .counts = send_counts,
                  .received_counts = recv_counts},
                 internal::memory_of<T>(in, out));
  }

  // The root's out = the ins one after another. The root reads all parts. MPI_Gather(v).
  template <class In = internal::NoMemory, OutMemoryFor<In> Out = internal::NoMemory>
  Work gather(const In& in, Out&& out, int root, absl::Span<const int64_t> counts = {}) const {
    const auto spans = internal::spans_of(in, out);
    return gather(spans.in, spans.out, root, counts);
  }
  template <HasDType T>
  Work gather(absl::Span<const T> in, absl::Span<T> out, int root,
              absl::Span<const int64_t> counts = {}) const {
    return start({.kind = OpKind::kGather, .root = root, .counts = counts},
                 internal::memory_of<T>(in, out));
  }

  // Each out = its part of the root's in. MPI_Scatter(v).
  template <class In = internal::NoMemory, OutMemoryFor<In> Out = internal::NoMemory>
  Work scatter(const In& in, Out&& out, int root, absl::Span<const int64_t> counts = {}) const {
    const auto spans = internal::spans_of(in, out);
    return scatter(spans.in, spans.out, root, counts);
  }
  template <HasDType T>
  Work scatter(absl::Span<const T> in, absl::Span<T> out, int root,
               absl::Span<const int64_t> counts = {}) const {
    return start({.kind = OpKind::kScatter, .root = root, .counts = counts},
                 internal::memory_of<T>(in, out));
  }

  // One message to member `to`. The k-th send to a member is matched with its k-th recv from this
  // member. The recv gets the verdict of that send, even if the send timed out long before.
  // - A send or recv does not delay the other operations of its device, so any order of sends and
  //   recvs is free of deadlock.
  // - Only the Work of a recv orders it against other operations.
  // - The Work of a send is done when the message has been received.
  template <InMemory In>
  Work send(const In& in, int to) const {
    return send(internal::spans_of(in, internal::NoMemory()).in, to);
  }
  template <HasDType T>
  Work send(absl::Span<const T> in, int to) const {
    return start_message(internal::memory_of<T>(in, {}), to, /*sends=*/true);
  }
  template <OutMemory Out>
  Work recv(Out&& out, int from) const {
    return recv(internal::spans_of(internal::NoMemory(), out).out, from);
  }
  template <HasDType T>
  Work recv(absl::Span<T> out, int from) const {
    return start_message(internal::memory_of<T>({}, out), from, /*sends=*/false);
  }

  // Done when all members have arrived.
  Work barrier() const;

  // Fills parts of `out`, which holds `out_box`, with boxes that members hold: pulls[i] copies its
  // box from the `in` of member pulls[i].source. Every member passes the box of its own `in` as
  // in_box.
  template <class In = internal::NoMemory, OutMemoryFor<In> Out = internal::NoMemory>
  Work exchange(const In& in, const Box& in_box, Out&& out, const Box& out_box,
                absl::Span<const BoxPull> pulls) const {
    const auto spans = internal::spans_of(in, out);
    return exchange(spans.in, in_box, spans.out, out_box, pulls);
  }
  template <HasDType T>
  Work exchange(absl::Span<const T> in, const Box& in_box, absl::Span<T> out, const Box& out_box,
                absl::Span<const BoxPull> pulls) const {
    return start_exchange(internal::memory_of<T>(in, out), in_box, out_box, pulls);
  }

 private:
  friend struct internal::GroupAccess;
  explicit Group(std::shared_ptr<const internal::GroupMember> member)
      : member_(std::move(member)) {}

  // The arguments of an operation that the functions above pass on.
  struct Call {
    OpKind kind;
    ReduceOp op = ReduceOp::kSum;
    int root = 0;
    // Whether an all_to_all has no counts. Other operations have equal counts where `counts` is
    // empty.
    bool has_equal_parts = true;
    absl::Span<const int64_t> counts = {};
    absl::Span<const int64_t> received_counts = {};
  };
  Work start(const Call& call, const internal::CallMemory& memory) const;
  // Starts the send where `sends`, else the recv.
  Work start_message(const internal::CallMemory& memory, int peer, bool sends) const;
  Work start_exchange(const internal::CallMemory& memory, const Box& in_box, const Box& out_box,
                      absl::Span<const BoxPull> pulls) const;

  std::shared_ptr<const internal::GroupMember> member_;  // null: empty
};

}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_GROUP_H_
