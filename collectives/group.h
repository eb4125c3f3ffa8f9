// SPDX-License-Identifier: Apache-2.0
//
// Group: an ordered list of devices that run collectives together, as one of them sees it.
//
//   StatusOr<Group> group = client.group({0, 1, 2, 3});
//   std::vector<float> in(1024, 1.0f), out(1024);
//   Work w = group->all_reduce(in, out, ReduceOp::kSum);
//   Status s = w.wait(absl::Seconds(5));
//
// Memory is a vector, an array, a span or a DeviceSpan of Client::allocate(); {} is none
// (memory.h). The element type follows from it. Each operation has a second form below the first,
// of two spans, whose type can be named: all_reduce<float>(in, out, op) converts what converts to
// spans of float. That is why this header is long.
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
//        lent inputs             where the others only read a tensor of the member's, or nothing,
//                                the operation ends for it with its own part; a loss or a deadline
//                                after that is told to the others alone
//        deadlines in a queue    clients that give up an operation while one many calls before it
//                                is not over may get a text each
//        a client far behind     gets "given up without this client" for the calls that the others
//                                have given up, and goes on with what they do then; its barrier
//                                is theirs at once
//
// Calls are asynchronous: they enqueue on the member's device and return. Memory must stay valid,
// and have no other writer, until the Work is done. In and out may be exactly in place where a
// function says so; any other overlap is InvalidArgument. Zero elements are legal, with null
// pointers too.
//
// Functions may be called from any thread. A member's operations are those of its device, in the
// order of the calls; two members of one client are two devices, each with an order of its own, and
// may be driven by a thread each. Threads that call on the same member at once leave its order to
// chance, which invariant 1 does not allow.
//
// When the Work is done memory is the caller's again, with one exception. Where out is the memory
// of a tensor (what from_function() and local_map() let a caller write), members of other clients
// of the host write to it by themselves, in an all_reduce and at the root of a reduce. If that
// fails with Unavailable or DeadlineExceeded after all had arrived, a member that was held up may
// write to out later, as long as its process lives. Drop that tensor then, and use another one. The
// pool never reuses its memory.
#ifndef TESSERA_COLLECTIVES_GROUP_H_
#define TESSERA_COLLECTIVES_GROUP_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "collectives/arguments.h"
#include "collectives/collective.h"
#include "collectives/counts.h"
#include "collectives/memory.h"
#include "collectives/op_kind.h"
#include "collectives/prepared.h"
#include "collectives/work.h"
#include "device/device_span.h"

namespace tessera {

namespace internal {
struct GroupAccess;  // collectives/testing/group_access.h
}  // namespace internal

// Internal: what executes the collectives of one group, such as the host's shared memory or NCCL.
class GroupBackend {
 public:
  virtual ~GroupBackend() = default;
  // Ids of the members' devices, in group order.
  virtual absl::Span<const int> device_ids() const = 0;
  // Starts a run of the Collective for its member, which must be a device of this client: the one
  // at place(), of a message the end that place() says.
  virtual Work start(Collective::Ptr collective, Arguments arguments) = 0;
};

// The memory of a call as the caller gives it; not checked.
struct GivenMemory {
  const std::byte* in = nullptr;
  int64_t in_count = 0;  // elements, as the one below
  std::byte* out = nullptr;
  int64_t out_count = 0;
};

class Group {
 public:
  // `order`: of the reductions; equal on all members.
  Group(std::shared_ptr<GroupBackend> backend, int position,
        ReductionOrder order = ReductionOrder::kByHost)
      : backend_(std::move(backend)),
        position_(position),
        order_(order),
        prepared_(std::make_shared<PreparedCollectives>()) {}

  // A group that was moved from has no members, and its operations fail with FailedPrecondition.
  int size() const { return static_cast<int>(device_ids().size()); }
  int position() const { return position_; }
  absl::Span<const int> device_ids() const {
    return backend_ == nullptr ? absl::Span<const int>() : backend_->device_ids();
  }

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
    return start<T>({.kind = OpKind::kAllReduce, .op = op, .count = size_of(in)}, in, out);
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
    return start<T>({.kind = OpKind::kReduce, .op = op, .root = root, .count = size_of(in)}, in,
                    out);
  }

  // Each out = the root's in; other ins may be empty. In place at the root. S read a member.
  template <class In = internal::NoMemory, OutMemoryFor<In> Out = internal::NoMemory>
  Work broadcast(const In& in, Out&& out, int root) const {
    const auto spans = internal::spans_of(in, out);
    return broadcast(spans.in, spans.out, root);
  }
  template <HasDType T>
  Work broadcast(absl::Span<const T> in, absl::Span<T> out, int root) const {
    return start<T>({.kind = OpKind::kBroadcast, .root = root, .count = size_of(out)}, in, out);
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
    return start<T>({.kind = OpKind::kAllGather,
                     .count = size_of(out),
                     .counts = counts_or_equal(counts, size_of(in))},
                    in, out);
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
    return start<T>({.kind = OpKind::kReduceScatter,
                     .op = op,
                     .count = size_of(in),
                     .counts = counts_or_equal(counts, size_of(out))},
                    in, out);
  }

  // Member k's out = part r of each in, one after another: equal parts. MPI_Alltoall.
  template <class In = internal::NoMemory, OutMemoryFor<In> Out = internal::NoMemory>
  Work all_to_all(const In& in, Out&& out) const {
    const auto spans = internal::spans_of(in, out);
    return all_to_all(spans.in, spans.out);
  }
  template <HasDType T>
  Work all_to_all(absl::Span<const T> in, absl::Span<T> out) const {
    const Counts parts = Counts::equal(size(), size_of(in) / std::max(size(), 1));
    return start<T>({.kind = OpKind::kAllToAll,
                     .count = size_of(in),
                     .counts = parts,
                     .received_counts = parts},
                    in, out);
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
    return start<T>({.kind = OpKind::kAllToAll,
                     .counts = Counts::of(send_counts),
                     .received_counts = Counts::of(recv_counts)},
                    in, out);
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
    return start<T>(
        {.kind = OpKind::kGather, .root = root, .counts = counts_or_equal(counts, size_of(in))}, in,
        out);
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
    return start<T>(
        {.kind = OpKind::kScatter, .root = root, .counts = counts_or_equal(counts, size_of(out))},
        in, out);
  }

  // One message to member `to`, matched in order with its recv from this member: the k-th recv is
  // of the k-th send, and gets its verdict where that has timed out long ago. Neither holds up the
  // other operations of its device, so any order of sends and recvs is free of deadlock; a recv is
  // ordered against other operations by its Work alone. The Work of a send is done when the message
  // has been received.
  template <InMemory In>
  Work send(const In& in, int to) const {
    return send(internal::spans_of(in, internal::NoMemory()).in, to);
  }
  template <HasDType T>
  Work send(absl::Span<const T> in, int to) const {
    return start_message<T>({.sender = position_, .receiver = to}, /*sends=*/true, in, {});
  }
  template <OutMemory Out>
  Work recv(Out&& out, int from) const {
    return recv(internal::spans_of(internal::NoMemory(), out).out, from);
  }
  template <HasDType T>
  Work recv(absl::Span<T> out, int from) const {
    return start_message<T>({.sender = from, .receiver = position_}, /*sends=*/false, {}, out);
  }

  // Done when all members have arrived.
  Work barrier() const;

  // Fills parts of `out`, which holds `out_box`, with boxes that members hold: pulls[i] copies its
  // box from the `in` of member pulls[i].source. Every member passes what its own `in` holds.
  template <class In = internal::NoMemory, OutMemoryFor<In> Out = internal::NoMemory>
  Work exchange(const In& in, const Box& in_box, Out&& out, const Box& out_box,
                absl::Span<const BoxPull> pulls) const {
    const auto spans = internal::spans_of(in, out);
    return exchange(spans.in, in_box, spans.out, out_box, pulls);
  }
  template <HasDType T>
  Work exchange(absl::Span<const T> in, const Box& in_box, absl::Span<T> out, const Box& out_box,
                absl::Span<const BoxPull> pulls) const {
    const BoxExchange boxes = {in_box, out_box, std::vector<BoxPull>(pulls.begin(), pulls.end())};
    return start<T>({.kind = OpKind::kExchange, .boxes = &boxes}, in, out);
  }

 private:
  friend struct internal::GroupAccess;

  template <class Span>
  static int64_t size_of(const Span& span) {
    return static_cast<int64_t>(span.size());
  }
  Counts counts_or_equal(absl::Span<const int64_t> counts, int64_t equal) const {
    return counts.empty() ? Counts::equal(size(), equal) : Counts::of(counts);
  }
  template <HasDType T>
  static GivenMemory memory_of(absl::Span<const T> in, absl::Span<T> out) {
    return {reinterpret_cast<const std::byte*>(in.data()), size_of(in),
            reinterpret_cast<std::byte*>(out.data()), size_of(out)};
  }
  template <HasDType T>
  Work start(CollectiveSpec spec, absl::Span<const T> in, absl::Span<T> out) const {
    spec.dtype = dtype_of<T>();
    spec.order = order_;
    return start(spec, memory_of<T>(in, out));
  }
  template <HasDType T>
  Work start_message(MessageEnds ends, bool sends, absl::Span<const T> in,
                     absl::Span<T> out) const {
    return start({.num_members = 2, .position = sends ? 0 : 1},
                 {.kind = OpKind::kSendRecv,
                  .dtype = dtype_of<T>(),
                  .count = size_of(in) + size_of(out),
                  .ends = ends},
                 memory_of<T>(in, out), {});
  }
  // Any operation as this member, except a message.
  Work start(const CollectiveSpec& spec, const GivenMemory& memory,
             Arguments arguments = {}) const {
    return start({.num_members = size(), .position = position_}, spec, memory,
                 std::move(arguments));
  }
  Work start(GroupPlace place, const CollectiveSpec& spec, const GivenMemory& memory,
             Arguments arguments) const;
  // The Collective of the call, perhaps prepared for an earlier call; Collective::refused() where
  // the call is wrong.
  Collective::Ptr prepare(GroupPlace place, const CollectiveSpec& spec, const GivenMemory& memory,
                          const Arguments& arguments) const;

  std::shared_ptr<GroupBackend> backend_;  // null: moved from
  int position_;
  ReductionOrder order_;
  std::shared_ptr<PreparedCollectives> prepared_;
};

}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_GROUP_H_
