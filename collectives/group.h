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
// which takes two spans and whose type can be named: all_reduce<float>(in, out, op) accepts
// everything that converts to spans of float. The two forms make this header long.
//
// P = size(), r = position(), S = bytes of the count named. Invariants:
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
//        deadlines in a queue    clients that give up an operation may get different texts if an
//                                operation many calls before it is not over
//        a client far behind     gets "given up without this client" for the calls that the
//                                others have given up, and then joins their present call; its
//                                barrier joins theirs immediately
//
// Calls are asynchronous: they enqueue on the member's device and return. Memory must stay valid,
// and have no other writer, until the Work is done. In and out may be exactly in place where a
// function says so; any other overlap is InvalidArgument. Zero elements are legal, with null
// pointers too.
//
// Functions may be called from any thread. A member's operations run on its device, in the order of
// the calls. Two members of one client are two devices with independent orders; each may be driven
// by its own thread. Threads that call the same member at the same time leave its order to chance,
// which invariant 1 does not allow.
//
// When the Work is done memory is the caller's again, with one exception. Where out is the memory
// of a tensor (what from_function() and local_map() let a caller write), members of other clients
// of the host write to it by themselves, in an all_reduce and at the root of a reduce. If that
// fails with Unavailable or DeadlineExceeded after all had arrived, a member that was held up may
// write to out later, as long as its process lives. Drop that tensor then, and use another one: no
// later tensor gets its memory.
#ifndef TESSERA_COLLECTIVES_GROUP_H_
#define TESSERA_COLLECTIVES_GROUP_H_

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "collectives/box_pull.h"
#include "collectives/memory.h"
#include "collectives/op_kind.h"
#include "collectives/work.h"
#include "device/device_span.h"

namespace tessera {

namespace internal {
class GroupMember;
struct GroupAccess;
}  // namespace internal

class Group {
 public:
  // A group that was moved from has no members, and its operations fail with FailedPrecondition.
  int size() const { return static_cast<int>(device_ids().size()); }
  int position() const;
  absl::Span<const int> device_ids() const;

  // "group of devices 0-3, 9, as device 2".
  std::string to_string() const;
  friend std::ostream& operator<<(std::ostream& out, const Group& group) {
    return out << group.to_string();
  }

  // Each out = the reduction of all ins. Each member reads P chunks of S/P bytes, and writes S/P
  // bytes to each output. In place: out == in. MPI_Allreduce, ncclAllReduce.
  template <class In = internal::NoMemory, OutMemoryFor<In> Out = internal::NoMemory>
  Work all_reduce(const In& in, Out&& out, ReduceOp op) const {
    const auto spans = internal::spans_of(in, out);
    return all_reduce(spans.in, spans.out, op);
  }
  template <HasDType T>
  Work all_reduce(absl::Span<const T> in, absl::Span<T> out, ReduceOp op) const {
    return start({.kind = OpKind::kAllReduce, .op = op}, internal::memory_of<T>(in, out));
  }

  // The root's out = the reduction of all ins; other outs are not touched and may be empty.
  // In place at the root. MPI_Reduce.
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

  // Each out = the root's in; other ins may be empty. In place at the root. A member reads S bytes.
  template <class In = internal::NoMemory, OutMemoryFor<In> Out = internal::NoMemory>
  Work broadcast(const In& in, Out&& out, int root) const {
    const auto spans = internal::spans_of(in, out);
    return broadcast(spans.in, spans.out, root);
  }
  template <HasDType T>
  Work broadcast(absl::Span<const T> in, absl::Span<T> out, int root) const {
    return start({.kind = OpKind::kBroadcast, .root = root}, internal::memory_of<T>(in, out));
  }

  // Each out = the ins one after another. Equal sizes, or counts[k] elements from member k.
  // In place: in == out + the counts before r. MPI_Allgather(v).
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

  // Member k's out = part k of the reduction of all ins. Equal parts, or counts[k] elements for
  // member k. In place: out == in + the counts before r. MPI_Reduce_scatter(_block).
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

  // Member k's out = part r of each in, one after another: equal parts. MPI_Alltoall.
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

  // The root's out = the ins one after another; other outs may be empty. In place at the root.
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

  // Each out = its part of the root's in; other ins may be empty. In place at the root.
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

  std::shared_ptr<const internal::GroupMember> member_;  // null: moved from
};

}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_GROUP_H_
