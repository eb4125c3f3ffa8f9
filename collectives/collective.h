// SPDX-License-Identifier: Apache-2.0
//
// Collective: an operation of a group, from the view of one member. It is made and checked once,
// and run any number of times. MPI: a persistent collective (MPI_Allreduce_init).
//
// When all members have arrived, a member of any kind of operation does one of two things:
//
//   pulls()      copy boxes out of inputs into the member's output
//   reduction()  reduces one box of all inputs, terms ascending, into one output or several
//
//   as member 1 of 3 sees it         out_box  does
//   all_gather of counts 3, 5, 2     [0:10]   pulls [3:8] of 1, [8:10] of 2, [0:3] of 0
//   scatter from 0, counts 3, 5, 2   [3:8]    pulls [3:8] of 0, which holds [0:10]
//   all_reduce of 60 f32             [0:60]   reduces [32:48] of all, which hold [0:60], to all
//
// A dense row-major buffer holds a box. Boxes have the coordinates of the member's output; the box
// that an input holds is given in these coordinates. Kinds without boxes of their own have rank 1.
//
// Invariants:
//   1. the box of a pull or a reduction is inside the box of each of its inputs and outputs;
//   2. simultaneous work of members is free of races: no two members write one element, and no
//      member reads an element that another one writes. This holds in place too, where in_place()
//      allows it: only the member that writes an element reads it, or the element is copied to
//      itself;
//   3. together, members write each element of each output that the operation promises, once. (In
//      an exchange the caller's pulls decide this; they must not overlap.)
// collective_test.cc executes them for every kind. Movers execute a Collective and do not ask for
// its kind, unless they have a tuned implementation of that kind.
//
// Immutable; safe to use from any thread. Counts are elements unless the name says bytes.
#ifndef TESSERA_COLLECTIVES_COLLECTIVE_H_
#define TESSERA_COLLECTIVES_COLLECTIVE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "collectives/box_pull.h"
#include "collectives/counts.h"
#include "collectives/op_kind.h"
#include "collectives/signature.h"

namespace tessera {

// A member of a group, by its position.
struct GroupPlace {
  int num_members = 1;
  int position = 0;

  friend bool operator==(const GroupPlace&, const GroupPlace&) = default;
};

// An immutable list of pulls. Copies share its memory: members that pull the same boxes have one
// list.
class BoxPulls {
 public:
  BoxPulls() = default;
  BoxPulls(std::vector<BoxPull> pulls)
      : pulls_(std::make_shared<const std::vector<BoxPull>>(std::move(pulls))) {}

  const BoxPull* data() const { return pulls_ == nullptr ? nullptr : pulls_->data(); }
  size_t size() const { return pulls_ == nullptr ? 0 : pulls_->size(); }
  const BoxPull* begin() const { return data(); }
  const BoxPull* end() const { return data() + size(); }
  const BoxPull& operator[](size_t i) const { return (*pulls_)[i]; }

 private:
  std::shared_ptr<const std::vector<BoxPull>> pulls_;  // null: empty
};

// The reduction of `box` over the members, in ascending order of the members.
struct BoxReduction {
  enum class Target : uint8_t {
    kOwn,   // the member's output
    kRoot,  // the root's output, which holds the same box
    kAll,   // the outputs of all members, which hold the same box
  };

  Box box;
  Target target = Target::kOwn;
  Box held;          // box that every member holds, where `sources` is empty
  BoxPulls sources;  // member k holds sources[k].source_box

  const Box& held_by(int member) const {
    return sources.size() == 0 ? held : sources[member].source_box;
  }
};

// A member's arguments of an exchange of boxes or a reduction of boxes.
struct BoxExchange {
  Box in_box;   // box of its input
  Box out_box;  // box of its output
  // An exchange: its copies. A reduction: member k holds pulls[k].source_box.
  BoxPulls pulls = {};
  // The caller guarantees invariant 1 of the pulls, which are not checked again: the members of a
  // plan share a list of as many pulls as there are members.
  bool are_pulls_checked = false;
  // The most elements that any member holds, equal on all members; 0 where members do not know it.
  int64_t most_elements = 0;
  // See Collective::replicas().
  std::vector<int> replicas = {};
  // See Collective::fill(). Only for an exchange in a group of one.
  std::optional<ReduceOp> fill = {};
  // The elements that all devices of the host write at the same time, where they are more than this
  // group's members write.
  int64_t elements_written = 0;
};

// The two members of a message, by their positions in the group.
struct MessageEnds {
  int sender = 0;
  int receiver = 1;

  friend bool operator==(const MessageEnds&, const MessageEnds&) = default;
};

// An operation as a caller requests it; not checked. Fields that its kind does not use keep their
// defaults.
struct CollectiveSpec {
  OpKind kind = OpKind::kBarrier;
  DType dtype = DType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  // Elements. In an all_to_all, the elements that each member sends if all parts are equal, else 0.
  // Ignored where `counts` gives them.
  int64_t count = 0;
  Counts counts = {};
  Counts received_counts = {};
  MessageEnds ends = {};  // of a message
  // For all_reduce, reduce and reduce_scatter; other kinds ignore it.
  ReductionOrder order = ReductionOrder::kFlat;
  absl::Span<const int> replicas = {};  // of an all_reduce: see Collective::replicas()
  const BoxExchange* boxes = nullptr;   // of an exchange or a reduction of boxes
};

class Collective {
 public:
  using Ptr = std::shared_ptr<const Collective>;

  // Makes the Collective of a member. Requires 0 <= position < num_members; in a message position 0
  // sends and position 1 receives. In a barrier each member adds `count` elements of all by itself;
  // 0: nothing moves. InvalidArgument for sizes, counts, roots, dtypes, reductions and boxes that
  // make no operation.
  static StatusOr<Ptr> make(GroupPlace place, const CollectiveSpec& spec);
  // A Collective that moves nothing: its runs fail with `error` for all members. For a caller that
  // finds its arguments wrong while other members may already wait in the operation.
  static Ptr refused(GroupPlace place, const CollectiveSpec& spec, Status error);
  const Status& error() const { return error_; }

  OpKind kind() const { return signature_.kind; }
  DType dtype() const { return signature_.dtype; }
  ReduceOp op() const { return signature_.reduction; }  // kSum where nothing is reduced
  int root() const { return signature_.root; }          // 0 where there is none
  const GroupPlace& place() const { return place_; }    // in a message: place of its end
  const MessageEnds& ends() const { return ends_; }
  // The facts on which all members must agree, without the detail of one run.
  const Signature& signature() const { return signature_; }
  // Whether counts() are equal on all members; the signature has their hash.
  bool are_counts_agreed() const { return are_counts_agreed_; }
  // The most elements that any member's input has. All members know the same, or none.
  std::optional<int64_t> most_elements() const { return most_elements_; }
  // The count that the members agree on: the elements of the whole; in an exchange
  // BoxExchange::most_elements; 0 where each member knows only its own count.
  int64_t count() const { return count_; }
  // By member: the elements of each input (all_gather, gather), of each output (reduce_scatter,
  // scatter), or the elements that this member sends to each (all_to_all). Otherwise empty. In an
  // all_to_all received_counts() are the elements that this member receives from each.
  const Counts& counts() const { return counts_; }
  const Counts& received_counts() const { return received_counts_; }
  // The members whose outputs share one memory, ascending, this member included; the first provides
  // the memory. Empty where the output is not shared. In an all_reduce these are all members; in an
  // exchange the members whose pulls fill one box together.
  absl::Span<const int> replicas() const { return replicas_; }

  // The elements that the member must pass. Without a value it may pass any number.
  std::optional<int64_t> in_count() const { return in_count_; }
  std::optional<int64_t> out_count() const { return out_count_; }
  // How the member's input may be a part of its output, or its output of its input.
  struct InPlace {
    enum class Rule : uint8_t {
      kExactly,   // element `in_offset` of the input may be element `out_offset` of the output
      kNever,     // must not overlap
      kAnywhere,  // the input or the output is not used
    };
    Rule rule = Rule::kExactly;
    int64_t in_offset = 0;
    int64_t out_offset = 0;
  };
  const InPlace& in_place() const { return in_place_; }

  const Box& out_box() const { return out_box_; }
  // Before its pulls the member writes the identity of this reduction to every element of its
  // output.
  const std::optional<ReduceOp>& fill() const { return fill_; }
  // Whether the pulls depend on the counts that the other members pass: an all_to_all whose parts
  // are not all equal. Each member then sends the others its own_counts().
  bool needs_peer_counts() const { return pulls_from_ == PullsFrom::kPeerCounts; }
  // The boxes that the member pulls. `peer_counts`: the own_counts() of all by member, if
  // needs_peer_counts(); wrong counts are the same InvalidArgument for every member. `made` holds a
  // list that is not stored. A list with parts of several members begins with the member's own
  // part, so that the members do not all read the same input at the same time.
  StatusOr<absl::Span<const BoxPull>> pulls(absl::Span<const int64_t* const> peer_counts,
                                            std::vector<BoxPull>& made) const;
  // The stored list of boxes, which members may share: pulls, or the boxes that the members hold in
  // a reduction of boxes.
  const BoxPulls& boxes() const { return reduction_.has_value() ? reduction_->sources : pulls_; }
  // Null: none.
  const BoxReduction* reduction() const { return reduction_.has_value() ? &*reduction_ : nullptr; }

  // Which members access the memory of this member.
  struct Access {
    bool is_input_read = true;           // any member reads this one's input
    bool do_peers_read_input = true;     // another member reads it
    bool do_peers_write_output = false;  // others write into this one's output
    // A member's part is over only when the parts of all members are over. If false, other members
    // use nothing of this member except its input.
    bool ends_together = false;
  };
  const Access& access() const { return access_; }

  // The bytes that all members write together, which determine the stores. A member that knows only
  // its own part assumes that all parts are equal. See BoxExchange::elements_written.
  int64_t bytes_written() const { return bytes_written_; }

 private:
  friend class CollectiveMaker;  // knows what each kind means

  Collective(OpKind kind, GroupPlace place, DType dtype);

  enum class PullsFrom : uint8_t { kList, kParts, kEqualParts, kPeerCounts };

  std::vector<BoxPull> pulls_of_parts(absl::Span<const int64_t* const> peer_counts) const;

  Signature signature_;
  GroupPlace place_;
  MessageEnds ends_;
  Status error_;
  int64_t count_ = 0;
  std::optional<int64_t> most_elements_;
  Counts counts_;
  Counts received_counts_;
  bool are_counts_agreed_ = false;
  std::vector<int> replicas_;
  std::optional<int64_t> in_count_;
  std::optional<int64_t> out_count_;
  InPlace in_place_;
  Box out_box_ = {{0}, {0}};
  std::optional<ReduceOp> fill_;
  PullsFrom pulls_from_ = PullsFrom::kList;
  BoxPulls pulls_;  // empty where pulls are made at each run
  std::optional<BoxReduction> reduction_;
  Access access_;
  int64_t bytes_written_ = 0;
};

// Bytes of the memory that the member uses.
inline int64_t in_bytes(const Collective& c) {
  return c.in_count().value_or(0) * dtype_size(c.dtype());
}
inline int64_t out_bytes(const Collective& c) {
  return c.out_count().value_or(0) * dtype_size(c.dtype());
}

// Whether each host adds its own terms first: a reduction in that order whose op and dtype allow
// it.
inline bool adds_by_host(const Collective& c) {
  return c.reduction() != nullptr && c.signature().order == ReductionOrder::kByHost &&
         may_add_by_host(c.op(), c.dtype());
}

// The counts that the member of an all_to_all sends to each member, then the counts that it
// receives from each.
std::vector<int64_t> own_counts(const Collective& c);

// The part of the whole that a member reduces, in a reduction without boxes of its own. In an
// all_reduce or a reduce it is about 1 / P of the whole, cut at lines of 64 bytes.
struct ReducedChunk {
  int64_t first;
  int64_t count;
};
ReducedChunk chunk_of(const Collective& c, int position);

}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_COLLECTIVE_H_
