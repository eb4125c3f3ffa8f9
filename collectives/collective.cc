// SPDX-License-Identifier: Apache-2.0
#include "collectives/collective.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/math.h"
#include "base/stable_hash.h"

namespace tessera {
namespace {

// [first : first + count], of rank 1.
Box run(int64_t first, int64_t count) { return {{first}, {count}}; }

Status check_root(int root, int num_members) {
  if (root >= 0 && root < num_members) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("root ", root, " is not a member; the group has 0 to ", num_members - 1));
}

// Every product of counts and bytes behind this check is below 2^63.
Status check_count(int64_t count, DType dtype) {
  if (count < 0) {
    return absl::InvalidArgumentError(absl::StrCat("count is ", count, "; a count is 0 or more"));
  }
  if (checked_product({count, dtype_size(dtype)}).has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("count is ", count, " elements of ", dtype_name(dtype),
                   ", more than 2^63 - 1 bytes; use a smaller count"));
}

Status check_counts(const Counts& counts, int num_members) {
  if (counts.size() != num_members) {
    return absl::InvalidArgumentError(absl::StrCat("counts has ", counts.size(),
                                                   " entries, and the group has ", num_members,
                                                   " members; give one for each"));
  }
  if (counts.checked_sum().has_value()) return absl::OkStatus();
  for (int i = 0; i < counts.size(); ++i) {
    if (counts[i] >= 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("counts[", i, "] is ", counts[i], "; a count is 0 or more"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("counts ", counts.to_string(),
                   " are more elements than a 64-bit integer counts; use smaller counts"));
}

Status check_box(const Box& box, DType dtype) {
  if (box.offsets.size() != box.sizes.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a box has ", box.offsets.size(),
                                                   " offsets and ", box.sizes.size(),
                                                   " sizes; give one of each for every dim"));
  }
  TESSERA_RETURN_IF_ERROR(validate_shape(box.sizes, dtype));
  for (size_t dim = 0; dim < box.sizes.size(); ++dim) {
    int64_t end = 0;
    if (!__builtin_add_overflow(box.offsets[dim], box.sizes[dim], &end)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("a box has offset ", box.offsets[dim], " and size ", box.sizes[dim],
                     " in dim ", dim, ", whose sum exceeds 64 bits; use a smaller offset"));
  }
  return absl::OkStatus();
}

bool has_order(OpKind kind) {
  return kind == OpKind::kAllReduce || kind == OpKind::kReduce || kind == OpKind::kReduceScatter;
}

// Invariant 1 for `box` out of a source that holds `source_box`.
Status check_inside(const Box& box, const Box& source_box, const Box& out_box) {
  if (box.sizes.size() == source_box.sizes.size() && box.sizes.size() == out_box.sizes.size() &&
      contains(source_box, box) && contains(out_box, box)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("box ", box.to_string(), " is not inside both its source ",
                   source_box.to_string(), " and its target ", out_box.to_string()));
}

// `reduced`: the box to pull from every source of a reduction; null in an exchange.
Status check_pulls(const BoxExchange& boxes, const Box* reduced, int num_members, DType dtype) {
  for (const BoxPull& pull : boxes.pulls) {
    if (pull.source < 0 || pull.source >= num_members) {
      return absl::InvalidArgumentError(absl::StrCat("a pull names member ", pull.source,
                                                     "; the group has 0 to ", num_members - 1));
    }
    TESSERA_RETURN_IF_ERROR(check_box(pull.source_box, dtype));
    TESSERA_RETURN_IF_ERROR(check_box(pull.box, dtype));
    TESSERA_RETURN_IF_ERROR(
        check_inside(reduced != nullptr ? *reduced : pull.box, pull.source_box, boxes.out_box));
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view op_kind_name(OpKind kind) {
  static constexpr absl::string_view kNames[kNumOpKinds] = {
      "all_reduce", "reduce",  "broadcast", "all_gather", "reduce_scatter", "all_to_all",
      "gather",     "scatter", "send/recv", "barrier",    "exchange",       "reduce_boxes"};
  return kNames[static_cast<int>(kind)];
}

Collective::Collective(OpKind kind, GroupPlace place, DType dtype)
    : signature_{.kind = kind,
                 .dtype = dtype,
                 .reduction = ReduceOp::kSum,
                 .root = 0,
                 .count = 0,
                 .detail_hash = stable_hash("")},
      place_(place) {}

StatusOr<std::shared_ptr<Collective>> Collective::create(OpKind kind, GroupPlace place,
                                                         DType dtype) {
  TESSERA_RETURN_IF_ERROR(validate_dtype(dtype));
  return std::shared_ptr<Collective>(new Collective(kind, place, dtype));
}

// Reduces the first `count` elements of each input by chunks. The target decides where the result
// is written; all outputs hold the whole.
Status Collective::set_chunked_reduction(ReduceOp op, int64_t count, BoxReduction::Target target) {
  TESSERA_RETURN_IF_ERROR(validate_reduction(op, dtype()));
  TESSERA_RETURN_IF_ERROR(check_count(count, dtype()));
  signature_.reduction = op;
  set_count(count);
  ends_together_ = true;
  in_count_ = count;
  out_box_ = run(0, count);
  const Chunk own = chunk(place_.position);
  reduction_ = {run(own.first, own.count), target, run(0, count), {}};
  return absl::OkStatus();
}

// For operations whose count all members know.
void Collective::set_count(int64_t count) {
  count_ = count;
  signature_.count = count;
  most_elements_ = count;
}

Status Collective::set_counts(Counts counts) {
  TESSERA_RETURN_IF_ERROR(check_counts(counts, place_.num_members));
  count_ = counts.sum();
  TESSERA_RETURN_IF_ERROR(check_count(count_, dtype()));
  counts_ = std::move(counts);
  return absl::OkStatus();
}

Status Collective::set_agreed_counts(Counts counts) {
  TESSERA_RETURN_IF_ERROR(set_counts(std::move(counts)));
  set_count(count_);
  are_counts_agreed_ = true;
  signature_.detail_hash = counts_.hash();
  return absl::OkStatus();
}

void Collective::set_bytes_written(int64_t elements) {
  bytes_written_ = saturating_mul(elements, dtype_size(dtype()));
}

StatusOr<Collective::Ptr> Collective::all_reduce(GroupPlace place, DType dtype, ReduceOp op,
                                                 int64_t count, std::vector<int> replicas,
                                                 ReductionOrder order) {
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Collective> c,
                           create(OpKind::kAllReduce, place, dtype));
  c->signature_.order = order;
  // Replicas have one output, which is the member's own and that of all others.
  const bool is_shared = !replicas.empty();
  TESSERA_RETURN_IF_ERROR(c->set_chunked_reduction(
      op, count, is_shared ? BoxReduction::Target::kOwn : BoxReduction::Target::kAll));
  c->out_count_ = count;
  c->do_peers_write_output_ = !is_shared || replicas[0] == place.position;
  c->replicas_ = std::move(replicas);
  c->set_bytes_written(saturating_mul(count, place.num_members));
  return c;
}

StatusOr<Collective::Ptr> Collective::reduce(GroupPlace place, DType dtype, ReduceOp op,
                                             int64_t count, int root, ReductionOrder order) {
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Collective> c,
                           create(OpKind::kReduce, place, dtype));
  c->signature_.order = order;
  TESSERA_RETURN_IF_ERROR(c->set_chunked_reduction(op, count, BoxReduction::Target::kRoot));
  TESSERA_RETURN_IF_ERROR(check_root(root, place.num_members));
  c->signature_.root = root;
  if (place.position == root) {
    c->out_count_ = count;
    c->do_peers_write_output_ = true;
  } else {
    c->in_place_.rule = InPlace::Rule::kAnywhere;
  }
  c->set_bytes_written(count);
  return c;
}

StatusOr<Collective::Ptr> Collective::barrier(GroupPlace place, DType dtype, int64_t count) {
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Collective> c,
                           create(OpKind::kBarrier, place, dtype));
  TESSERA_RETURN_IF_ERROR(check_count(count, dtype));
  c->set_count(count);
  c->in_count_ = c->out_count_ = count;
  // Every member reads all of every input.
  c->in_place_.rule = InPlace::Rule::kNever;
  c->out_box_ = run(0, count);
  c->reduction_ = {run(0, count), BoxReduction::Target::kOwn, run(0, count), {}};
  c->set_bytes_written(count);
  return c;
}

StatusOr<Collective::Ptr> Collective::reduce_scatter(GroupPlace place, DType dtype, ReduceOp op,
                                                     Counts counts, ReductionOrder order) {
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Collective> c,
                           create(OpKind::kReduceScatter, place, dtype));
  c->signature_.order = order;
  TESSERA_RETURN_IF_ERROR(validate_reduction(op, dtype));
  TESSERA_RETURN_IF_ERROR(c->set_agreed_counts(std::move(counts)));
  c->signature_.reduction = op;
  const Chunk own = c->chunk(place.position);
  c->in_count_ = c->count_;
  c->out_count_ = own.count;
  c->in_place_.in_offset = own.first;
  c->out_box_ = run(own.first, own.count);
  c->reduction_ = {c->out_box_, BoxReduction::Target::kOwn, run(0, c->count_), {}};
  c->set_bytes_written(c->count_);
  return c;
}

StatusOr<Collective::Ptr> Collective::broadcast(GroupPlace place, DType dtype, int64_t count,
                                                int root) {
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Collective> c,
                           create(OpKind::kBroadcast, place, dtype));
  TESSERA_RETURN_IF_ERROR(check_root(root, place.num_members));
  TESSERA_RETURN_IF_ERROR(check_count(count, dtype));
  c->signature_.root = root;
  c->set_count(count);
  c->set_one_source(count);
  c->out_count_ = count;
  c->out_box_ = run(0, count);
  c->pulls_ = std::vector<BoxPull>{{root, run(0, count), run(0, count)}};
  c->set_bytes_written(saturating_mul(count, place.num_members));
  return c;
}

StatusOr<Collective::Ptr> Collective::scatter(GroupPlace place, DType dtype, Counts counts,
                                              int root) {
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Collective> c,
                           create(OpKind::kScatter, place, dtype));
  TESSERA_RETURN_IF_ERROR(check_root(root, place.num_members));
  TESSERA_RETURN_IF_ERROR(c->set_agreed_counts(std::move(counts)));
  c->signature_.root = root;
  // The counts say it all.
  c->signature_.count = 0;
  const int64_t first = c->counts_.sum_before(place.position);
  const int64_t part = c->counts_[place.position];
  c->set_one_source(c->count_);
  c->out_count_ = part;
  c->in_place_.in_offset = first;
  c->out_box_ = run(first, part);
  c->pulls_ = std::vector<BoxPull>{{root, run(0, c->count_), c->out_box_}};
  c->set_bytes_written(c->count_);
  return c;
}

// For broadcast and scatter: only the root has an input.
void Collective::set_one_source(int64_t count) {
  is_input_read_ = place_.position == root();
  do_peers_read_input_ = is_input_read_;
  if (is_input_read_) {
    in_count_ = count;
  } else {
    in_place_.rule = InPlace::Rule::kAnywhere;
  }
}

StatusOr<Collective::Ptr> Collective::all_gather(GroupPlace place, DType dtype, Counts counts) {
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Collective> c,
                           create(OpKind::kAllGather, place, dtype));
  TESSERA_RETURN_IF_ERROR(c->set_agreed_counts(std::move(counts)));
  c->in_count_ = c->counts_[place.position];
  c->out_count_ = c->count_;
  c->in_place_.out_offset = c->counts_.sum_before(place.position);
  c->set_pulls_from(PullsFrom::kParts);
  c->set_bytes_written(saturating_mul(c->count_, place.num_members));
  return c;
}

StatusOr<Collective::Ptr> Collective::gather(GroupPlace place, DType dtype, Counts counts,
                                             int root) {
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Collective> c,
                           create(OpKind::kGather, place, dtype));
  TESSERA_RETURN_IF_ERROR(check_root(root, place.num_members));
  TESSERA_RETURN_IF_ERROR(c->set_agreed_counts(std::move(counts)));
  c->signature_.root = root;
  // The counts say it all.
  c->signature_.count = 0;
  c->in_count_ = c->counts_[place.position];
  if (place.position == root) {
    c->out_count_ = c->count_;
    c->in_place_.out_offset = c->counts_.sum_before(place.position);
    c->do_peers_read_input_ = false;
    c->set_pulls_from(PullsFrom::kParts);
  } else {
    c->in_place_.rule = InPlace::Rule::kAnywhere;
  }
  c->set_bytes_written(c->count_);
  return c;
}

// Keeps the list, unless it has so many parts that the lists of all members would take much memory.
void Collective::set_pulls_from(PullsFrom from) {
  constexpr int kMostKept = 64;
  out_box_ = run(0, *out_count_);
  pulls_from_ = from;
  if (from == PullsFrom::kPeerCounts || place_.num_members > kMostKept) return;
  pulls_ = pulls_of_parts({});
  pulls_from_ = PullsFrom::kList;
}

// Part k of the output is what member k has for this one: all that it holds, or one of the parts
// that it holds in the order of the members.
std::vector<BoxPull> Collective::pulls_of_parts(
    absl::Span<const int64_t* const> peer_counts) const {
  const int n = place_.num_members;
  const Counts& sizes = kind() == OpKind::kAllToAll ? received_counts_ : counts_;
  const auto sent_before = [&](int source, int member) {
    if (pulls_from_ == PullsFrom::kEqualParts) return counts_.sum_before(member);
    return std::accumulate(peer_counts[source], peer_counts[source] + member, int64_t{0});
  };
  std::vector<int64_t> firsts(n);
  for (int k = 1; k < n; ++k) firsts[k] = firsts[k - 1] + sizes[k - 1];
  std::vector<BoxPull> pulls;
  pulls.reserve(n);
  for (int k = 0; k < n; ++k) {
    const int source = (place_.position + k) % n;
    const Box part = run(firsts[source], sizes[source]);
    Box held = part;
    if (pulls_from_ != PullsFrom::kParts) {
      held = run(firsts[source] - sent_before(source, place_.position), sent_before(source, n));
    }
    pulls.push_back({source, std::move(held), part});
  }
  return pulls;
}

StatusOr<Collective::Ptr> Collective::all_to_all(GroupPlace place, DType dtype, int64_t part) {
  const Counts counts = Counts::equal(place.num_members, part);
  // A member whose parts are all 0 may meet one whose are not equal, and which reads its counts.
  if (part == 0) return all_to_all(place, dtype, counts, counts);
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Collective> c,
                           create(OpKind::kAllToAll, place, dtype));
  TESSERA_RETURN_IF_ERROR(c->set_counts(counts));
  c->received_counts_ = counts;
  c->set_count(c->count_);
  c->ends_together_ = true;
  c->in_count_ = c->out_count_ = c->count_;
  c->in_place_.rule = InPlace::Rule::kNever;
  c->set_pulls_from(PullsFrom::kEqualParts);
  c->set_bytes_written(saturating_mul(c->count_, place.num_members));
  return c;
}

StatusOr<Collective::Ptr> Collective::all_to_all(GroupPlace place, DType dtype, Counts sent,
                                                 Counts received) {
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Collective> c,
                           create(OpKind::kAllToAll, place, dtype));
  TESSERA_RETURN_IF_ERROR(c->set_counts(std::move(sent)));
  TESSERA_RETURN_IF_ERROR(check_counts(received, place.num_members));
  TESSERA_RETURN_IF_ERROR(check_count(received.sum(), dtype));
  c->received_counts_ = std::move(received);
  c->in_count_ = c->count_;
  c->out_count_ = c->received_counts_.sum();
  c->count_ = 0;
  // The others also read the counts.
  c->ends_together_ = true;
  c->in_place_.rule = InPlace::Rule::kNever;
  c->set_pulls_from(PullsFrom::kPeerCounts);
  c->set_bytes_written(saturating_mul(*c->out_count_, place.num_members));
  return c;
}

std::vector<int64_t> Collective::own_counts() const {
  std::vector<int64_t> both;
  both.reserve(counts_.size() + received_counts_.size());
  for (const Counts* counts : {&counts_, &received_counts_}) {
    for (int k = 0; k < counts->size(); ++k) both.push_back((*counts)[k]);
  }
  return both;
}

StatusOr<absl::Span<const BoxPull>> Collective::pulls(absl::Span<const int64_t* const> peer_counts,
                                                      std::vector<BoxPull>& made) const {
  if (pulls_from_ == PullsFrom::kList) return absl::MakeConstSpan(pulls_);
  if (needs_peer_counts()) TESSERA_RETURN_IF_ERROR(check_peer_counts(peer_counts));
  made = pulls_of_parts(peer_counts);
  return absl::MakeConstSpan(made);
}

Status Collective::check_peer_counts(absl::Span<const int64_t* const> counts) const {
  const int n = place_.num_members;
  // All members check all pairs: a member that moved its bytes while another one had found an error
  // would read memory that is no longer lent to it.
  for (int target = 0; target < n; ++target) {
    for (int source = 0; source < n; ++source) {
      const int64_t sent = counts[source][target];
      const int64_t expected = counts[target][n + source];
      if (sent == expected) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("member ", source, " sends ", sent, " elements to member ", target,
                       ", which expects ", expected, "; make the counts of both equal"));
    }
  }
  return absl::OkStatus();
}

StatusOr<Collective::Ptr> Collective::message(int position, DType dtype, int64_t count,
                                              MessageEnds ends) {
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Collective> c,
                           create(OpKind::kSendRecv, {2, position}, dtype));
  TESSERA_RETURN_IF_ERROR(check_count(count, dtype));
  c->ends_ = ends;
  c->count_ = count;
  c->signature_.count = count;
  c->ends_together_ = true;
  c->in_count_ = position == 0 ? count : 0;
  c->out_count_ = position == 0 ? 0 : count;
  c->out_box_ = run(0, count);
  if (position == 1) c->pulls_ = std::vector<BoxPull>{{0, run(0, count), run(0, count)}};
  c->set_bytes_written(count);
  return c;
}

// `reduced`: the box that is reduced, null in an exchange.
Status Collective::set_boxes(BoxExchange& boxes, const Box* reduced) {
  TESSERA_RETURN_IF_ERROR(check_box(boxes.in_box, dtype()));
  TESSERA_RETURN_IF_ERROR(check_box(boxes.out_box, dtype()));
  if (reduced != nullptr && boxes.pulls.size() != static_cast<size_t>(place_.num_members)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "boxes of ", boxes.pulls.size(), " members given, and the group has ", place_.num_members));
  }
  if (!boxes.are_pulls_checked) {
    TESSERA_RETURN_IF_ERROR(check_pulls(boxes, reduced, place_.num_members, dtype()));
  }
  count_ = boxes.most_elements;
  signature_.count = count_;
  // 0 where members have different ones.
  if (count_ > 0) most_elements_ = count_;
  in_count_ = boxes.in_box.num_elements();
  out_count_ = boxes.out_box.num_elements();
  in_place_.rule = InPlace::Rule::kNever;
  out_box_ = std::move(boxes.out_box);
  return absl::OkStatus();
}

StatusOr<Collective::Ptr> Collective::exchange(GroupPlace place, DType dtype, BoxExchange boxes) {
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Collective> c,
                           create(OpKind::kExchange, place, dtype));
  TESSERA_RETURN_IF_ERROR(c->set_boxes(boxes, nullptr));
  if (boxes.fill.has_value()) {
    TESSERA_RETURN_IF_ERROR(validate_reduction(*boxes.fill, dtype));
    if (place.num_members > 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "fill is of an exchange in a group of one, and the group has ", place.num_members));
    }
  }
  c->fill_ = boxes.fill;
  int64_t pulled = 0;
  for (const BoxPull& pull : boxes.pulls) {
    pulled = saturating_add(pulled, pull.box.num_elements());
  }
  c->pulls_ = std::move(boxes.pulls);
  c->replicas_ = std::move(boxes.replicas);
  c->do_peers_write_output_ = !c->replicas_.empty() && c->replicas_[0] == place.position;
  c->ends_together_ = !c->replicas_.empty();
  c->set_bytes_written(std::max(saturating_mul(pulled, place.num_members), boxes.elements_written));
  return c;
}

StatusOr<Collective::Ptr> Collective::reduce_boxes(GroupPlace place, DType dtype, ReduceOp op,
                                                   BoxExchange boxes) {
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Collective> c,
                           create(OpKind::kReduceBoxes, place, dtype));
  TESSERA_RETURN_IF_ERROR(validate_reduction(op, dtype));
  const Box reduced = boxes.out_box;
  TESSERA_RETURN_IF_ERROR(c->set_boxes(boxes, &reduced));
  c->signature_.reduction = op;
  c->reduction_ = {c->out_box_, BoxReduction::Target::kOwn, {}, std::move(boxes.pulls)};
  c->set_bytes_written(saturating_mul(*c->out_count_, place.num_members));
  return c;
}

// A count that is not 0 says that all parts are equal, on all members.
StatusOr<Collective::Ptr> Collective::make_all_to_all(GroupPlace place,
                                                      const CollectiveSpec& spec) {
  const int64_t part = spec.count / place.num_members;
  const Counts equal = Counts::equal(place.num_members, part);
  if (spec.count > 0 && spec.counts == equal && spec.received_counts == equal) {
    return all_to_all(place, spec.dtype, part);
  }
  StatusOr<Ptr> unequal = all_to_all(place, spec.dtype, spec.counts, spec.received_counts);
  if (!unequal.ok() || spec.count <= 0) return unequal;
  return absl::InvalidArgumentError(
      absl::StrCat("count is ", spec.count, ", and its ", place.num_members,
                   " parts are not equal; make count 0 where they differ"));
}

StatusOr<Collective::Ptr> Collective::make(GroupPlace place, const CollectiveSpec& spec) {
  const auto boxes = [&] { return spec.boxes == nullptr ? BoxExchange() : *spec.boxes; };
  switch (spec.kind) {
    case OpKind::kAllReduce:
      return all_reduce(place, spec.dtype, spec.op, spec.count, {}, spec.order);
    case OpKind::kReduce:
      return reduce(place, spec.dtype, spec.op, spec.count, spec.root, spec.order);
    case OpKind::kBroadcast:
      return broadcast(place, spec.dtype, spec.count, spec.root);
    case OpKind::kAllGather:
      return all_gather(place, spec.dtype, spec.counts);
    case OpKind::kReduceScatter:
      return reduce_scatter(place, spec.dtype, spec.op, spec.counts, spec.order);
    case OpKind::kAllToAll:
      return make_all_to_all(place, spec);
    case OpKind::kGather:
      return gather(place, spec.dtype, spec.counts, spec.root);
    case OpKind::kScatter:
      return scatter(place, spec.dtype, spec.counts, spec.root);
    case OpKind::kSendRecv:
      return message(place.position, spec.dtype, spec.count, spec.ends);
    case OpKind::kBarrier:
      return barrier(place, spec.dtype, spec.count);
    case OpKind::kExchange:
      return exchange(place, spec.dtype, boxes());
    case OpKind::kReduceBoxes:
      return reduce_boxes(place, spec.dtype, spec.op, boxes());
  }
  return absl::InternalError("an operation of an unknown kind");
}

// Its signature is that of the operation where there is one: a member that comes late is then told
// what became of the operation that it was for.
Collective::Ptr Collective::refused(GroupPlace place, const CollectiveSpec& spec, Status error) {
  std::shared_ptr<Collective> c(new Collective(spec.kind, place, spec.dtype));
  if (const StatusOr<Ptr> made = make(place, spec); made.ok()) {
    *c = **made;
  } else {
    c->signature_.reduction = spec.op;
    if (has_order(spec.kind)) c->signature_.order = spec.order;
    c->signature_.root = spec.root;
    c->ends_ = spec.ends;
  }
  c->signature_.count = spec.count;
  c->error_ = std::move(error);
  return c;
}

Collective::Chunk Collective::chunk(int position) const {
  if (kind() == OpKind::kReduceScatter) return {counts_.sum_before(position), counts_[position]};
  const int64_t line = 64 / dtype_size(dtype());
  const int64_t num_lines = count_ / line + (count_ % line != 0 ? 1 : 0);
  const auto cut = [&](int64_t k) {
    const int64_t lines = ceil_mul_div(k, num_lines, place_.num_members);
    return std::min(count_, saturating_mul(lines, line));
  };
  return {cut(position), cut(position + 1) - cut(position)};
}

}  // namespace tessera
