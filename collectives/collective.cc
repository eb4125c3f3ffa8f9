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

// `counts`: the own_counts() of all `n` members.
Status check_peer_counts(absl::Span<const int64_t* const> counts, int n) {
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

// Makes the Collective of a member's spec: the only code that knows the meaning of each kind.
class CollectiveMaker {
 public:
  CollectiveMaker(GroupPlace place, const CollectiveSpec& spec)
      : spec_(spec), place_(place), c_(new Collective(spec.kind, place, spec.dtype)) {
    if (has_order(spec.kind)) c_->signature_.order = spec.order;
  }

  StatusOr<std::shared_ptr<Collective>> make();
  // Nothing but the signature, of a spec that makes no operation.
  std::shared_ptr<Collective> make_unchecked();

 private:
  using PullsFrom = Collective::PullsFrom;
  using Rule = Collective::InPlace::Rule;

  Status set_kind();
  Status set_all_reduce();
  Status set_reduce();
  Status set_barrier();
  Status set_reduce_scatter();
  Status set_broadcast();
  Status set_scatter();
  Status set_all_gather();
  Status set_gather();
  Status set_all_to_all();
  Status set_message();
  Status set_exchange(BoxExchange boxes);
  Status set_reduce_boxes(BoxExchange boxes);

  // Steps that several kinds share.
  Status set_chunked_reduction(BoxReduction::Target target);
  Status set_root();
  void set_count(int64_t count);
  Status set_counts();
  Status set_agreed_counts();
  void set_one_source(int64_t count);
  Status set_boxes(BoxExchange& boxes, const Box* reduced);
  void set_pulls_from(PullsFrom from);
  void set_bytes_written(int64_t elements);
  // For operations whose output each member writes.
  void set_bytes_written_by_all(int64_t elements) {
    set_bytes_written(saturating_mul(elements, place_.num_members));
  }

  const CollectiveSpec& spec_;
  const GroupPlace place_;
  const std::shared_ptr<Collective> c_;
};

StatusOr<std::shared_ptr<Collective>> CollectiveMaker::make() {
  TESSERA_RETURN_IF_ERROR(validate_dtype(spec_.dtype));
  TESSERA_RETURN_IF_ERROR(set_kind());
  return c_;
}

std::shared_ptr<Collective> CollectiveMaker::make_unchecked() {
  c_->signature_.reduction = spec_.op;
  c_->signature_.root = spec_.root;
  c_->ends_ = spec_.ends;
  return c_;
}

Status CollectiveMaker::set_kind() {
  const auto boxes = [this] { return spec_.boxes == nullptr ? BoxExchange() : *spec_.boxes; };
  switch (spec_.kind) {
    case OpKind::kAllReduce:
      return set_all_reduce();
    case OpKind::kReduce:
      return set_reduce();
    case OpKind::kBroadcast:
      return set_broadcast();
    case OpKind::kAllGather:
      return set_all_gather();
    case OpKind::kReduceScatter:
      return set_reduce_scatter();
    case OpKind::kAllToAll:
      return set_all_to_all();
    case OpKind::kGather:
      return set_gather();
    case OpKind::kScatter:
      return set_scatter();
    case OpKind::kSendRecv:
      return set_message();
    case OpKind::kBarrier:
      return set_barrier();
    case OpKind::kExchange:
      return set_exchange(boxes());
    case OpKind::kReduceBoxes:
      return set_reduce_boxes(boxes());
  }
  return absl::InternalError("an operation of an unknown kind");
}

// Reduces the elements of each input by chunks. The target decides where the result is written; all
// outputs hold the whole.
Status CollectiveMaker::set_chunked_reduction(BoxReduction::Target target) {
  TESSERA_RETURN_IF_ERROR(validate_reduction(spec_.op, spec_.dtype));
  TESSERA_RETURN_IF_ERROR(check_count(spec_.count, spec_.dtype));
  c_->signature_.reduction = spec_.op;
  set_count(spec_.count);
  c_->access_.ends_together = true;
  c_->in_count_ = spec_.count;
  c_->out_box_ = run(0, spec_.count);
  const ReducedChunk own = chunk_of(*c_, place_.position);
  c_->reduction_ = {run(own.first, own.count), target, c_->out_box_, {}};
  return absl::OkStatus();
}

Status CollectiveMaker::set_root() {
  TESSERA_RETURN_IF_ERROR(check_root(spec_.root, place_.num_members));
  c_->signature_.root = spec_.root;
  return absl::OkStatus();
}

// For operations whose count all members know.
void CollectiveMaker::set_count(int64_t count) {
  c_->count_ = count;
  c_->signature_.count = count;
  c_->most_elements_ = count;
}

Status CollectiveMaker::set_counts() {
  TESSERA_RETURN_IF_ERROR(check_counts(spec_.counts, place_.num_members));
  c_->count_ = spec_.counts.sum();
  TESSERA_RETURN_IF_ERROR(check_count(c_->count_, spec_.dtype));
  c_->counts_ = spec_.counts;
  return absl::OkStatus();
}

Status CollectiveMaker::set_agreed_counts() {
  TESSERA_RETURN_IF_ERROR(set_counts());
  set_count(c_->count_);
  c_->are_counts_agreed_ = true;
  c_->signature_.detail_hash = c_->counts_.hash();
  return absl::OkStatus();
}

void CollectiveMaker::set_bytes_written(int64_t elements) {
  c_->bytes_written_ = saturating_mul(elements, dtype_size(spec_.dtype));
}

Status CollectiveMaker::set_all_reduce() {
  const absl::Span<const int> replicas = spec_.replicas;
  // Replicas share one output, so the member's own output is the output of all.
  const bool is_shared = !replicas.empty();
  TESSERA_RETURN_IF_ERROR(
      set_chunked_reduction(is_shared ? BoxReduction::Target::kOwn : BoxReduction::Target::kAll));
  c_->out_count_ = spec_.count;
  c_->access_.do_peers_write_output = !is_shared || replicas[0] == place_.position;
  c_->replicas_.assign(replicas.begin(), replicas.end());
  set_bytes_written_by_all(spec_.count);
  return absl::OkStatus();
}

Status CollectiveMaker::set_reduce() {
  TESSERA_RETURN_IF_ERROR(set_chunked_reduction(BoxReduction::Target::kRoot));
  TESSERA_RETURN_IF_ERROR(set_root());
  if (place_.position == spec_.root) {
    c_->out_count_ = spec_.count;
    c_->access_.do_peers_write_output = true;
  } else {
    c_->in_place_.rule = Rule::kAnywhere;
  }
  set_bytes_written(spec_.count);
  return absl::OkStatus();
}

Status CollectiveMaker::set_barrier() {
  const int64_t count = spec_.count;
  TESSERA_RETURN_IF_ERROR(check_count(count, spec_.dtype));
  set_count(count);
  c_->in_count_ = c_->out_count_ = count;
  // Every member reads all of every input.
  c_->in_place_.rule = Rule::kNever;
  c_->out_box_ = run(0, count);
  c_->reduction_ = {run(0, count), BoxReduction::Target::kOwn, run(0, count), {}};
  set_bytes_written(count);
  return absl::OkStatus();
}

Status CollectiveMaker::set_reduce_scatter() {
  TESSERA_RETURN_IF_ERROR(validate_reduction(spec_.op, spec_.dtype));
  TESSERA_RETURN_IF_ERROR(set_agreed_counts());
  c_->signature_.reduction = spec_.op;
  const ReducedChunk own = chunk_of(*c_, place_.position);
  c_->in_count_ = c_->count_;
  c_->out_count_ = own.count;
  c_->in_place_.in_offset = own.first;
  c_->out_box_ = run(own.first, own.count);
  c_->reduction_ = {c_->out_box_, BoxReduction::Target::kOwn, run(0, c_->count_), {}};
  set_bytes_written(c_->count_);
  return absl::OkStatus();
}

Status CollectiveMaker::set_broadcast() {
  TESSERA_RETURN_IF_ERROR(set_root());
  TESSERA_RETURN_IF_ERROR(check_count(spec_.count, spec_.dtype));
  set_count(spec_.count);
  set_one_source(spec_.count);
  c_->out_count_ = spec_.count;
  c_->out_box_ = run(0, spec_.count);
  c_->pulls_ = std::vector<BoxPull>{{spec_.root, c_->out_box_, c_->out_box_}};
  set_bytes_written_by_all(spec_.count);
  return absl::OkStatus();
}

Status CollectiveMaker::set_scatter() {
  TESSERA_RETURN_IF_ERROR(set_root());
  TESSERA_RETURN_IF_ERROR(set_agreed_counts());
  // The counts say it all.
  c_->signature_.count = 0;
  const int64_t first = c_->counts_.sum_before(place_.position);
  const int64_t part = c_->counts_[place_.position];
  set_one_source(c_->count_);
  c_->out_count_ = part;
  c_->in_place_.in_offset = first;
  c_->out_box_ = run(first, part);
  c_->pulls_ = std::vector<BoxPull>{{spec_.root, run(0, c_->count_), c_->out_box_}};
  set_bytes_written(c_->count_);
  return absl::OkStatus();
}

// For broadcast and scatter: only the root has an input.
void CollectiveMaker::set_one_source(int64_t count) {
  const bool is_source = place_.position == spec_.root;
  c_->access_.is_input_read = c_->access_.do_peers_read_input = is_source;
  if (is_source) {
    c_->in_count_ = count;
  } else {
    c_->in_place_.rule = Rule::kAnywhere;
  }
}

Status CollectiveMaker::set_all_gather() {
  TESSERA_RETURN_IF_ERROR(set_agreed_counts());
  c_->in_count_ = c_->counts_[place_.position];
  c_->out_count_ = c_->count_;
  c_->in_place_.out_offset = c_->counts_.sum_before(place_.position);
  set_pulls_from(PullsFrom::kParts);
  set_bytes_written_by_all(c_->count_);
  return absl::OkStatus();
}

Status CollectiveMaker::set_gather() {
  TESSERA_RETURN_IF_ERROR(set_root());
  TESSERA_RETURN_IF_ERROR(set_agreed_counts());
  // The counts say it all.
  c_->signature_.count = 0;
  c_->in_count_ = c_->counts_[place_.position];
  if (place_.position == spec_.root) {
    c_->out_count_ = c_->count_;
    c_->in_place_.out_offset = c_->counts_.sum_before(place_.position);
    c_->access_.do_peers_read_input = false;
    set_pulls_from(PullsFrom::kParts);
  } else {
    c_->in_place_.rule = Rule::kAnywhere;
  }
  set_bytes_written(c_->count_);
  return absl::OkStatus();
}

// Keeps the list, unless it has so many parts that the lists of all members would take much memory.
void CollectiveMaker::set_pulls_from(PullsFrom from) {
  constexpr int kMostKept = 64;
  c_->out_box_ = run(0, *c_->out_count_);
  c_->pulls_from_ = from;
  if (from == PullsFrom::kPeerCounts || place_.num_members > kMostKept) return;
  c_->pulls_ = c_->pulls_of_parts({});
  c_->pulls_from_ = PullsFrom::kList;
}

// A count that is not 0 says that all parts are equal, on all members.
Status CollectiveMaker::set_all_to_all() {
  const Counts& received = spec_.received_counts;
  const int64_t part = spec_.count / place_.num_members;
  const Counts equal = Counts::equal(place_.num_members, part);
  const bool are_equal = spec_.counts == equal && received == equal;
  TESSERA_RETURN_IF_ERROR(set_counts());
  TESSERA_RETURN_IF_ERROR(check_counts(received, place_.num_members));
  TESSERA_RETURN_IF_ERROR(check_count(received.sum(), spec_.dtype));
  c_->received_counts_ = received;
  c_->in_count_ = c_->count_;
  c_->out_count_ = received.sum();
  // The others also read the counts.
  c_->access_.ends_together = true;
  c_->in_place_.rule = Rule::kNever;
  if (are_equal && part > 0) {
    set_count(c_->count_);
    set_pulls_from(PullsFrom::kEqualParts);
  } else {
    // A member whose parts are all 0 may meet one whose are not equal, and which reads its counts.
    c_->count_ = 0;
    set_pulls_from(PullsFrom::kPeerCounts);
  }
  set_bytes_written_by_all(*c_->out_count_);
  if (are_equal || spec_.count <= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("count is ", spec_.count, ", and its ", place_.num_members,
                   " parts are not equal; make count 0 where they differ"));
}

// Its group is {sender, receiver}.
Status CollectiveMaker::set_message() {
  const int64_t count = spec_.count;
  const bool sends = place_.position == 0;
  TESSERA_RETURN_IF_ERROR(check_count(count, spec_.dtype));
  c_->place_.num_members = 2;
  c_->ends_ = spec_.ends;
  c_->count_ = count;
  c_->signature_.count = count;
  c_->access_.ends_together = true;
  c_->in_count_ = sends ? count : 0;
  c_->out_count_ = sends ? 0 : count;
  c_->out_box_ = run(0, count);
  if (!sends) c_->pulls_ = std::vector<BoxPull>{{0, run(0, count), run(0, count)}};
  set_bytes_written(count);
  return absl::OkStatus();
}

// `reduced`: the box that is reduced, null in an exchange.
Status CollectiveMaker::set_boxes(BoxExchange& boxes, const Box* reduced) {
  TESSERA_RETURN_IF_ERROR(check_box(boxes.in_box, spec_.dtype));
  TESSERA_RETURN_IF_ERROR(check_box(boxes.out_box, spec_.dtype));
  if (reduced != nullptr && boxes.pulls.size() != static_cast<size_t>(place_.num_members)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "boxes of ", boxes.pulls.size(), " members given, and the group has ", place_.num_members));
  }
  if (!boxes.are_pulls_checked) {
    TESSERA_RETURN_IF_ERROR(check_pulls(boxes, reduced, place_.num_members, spec_.dtype));
  }
  set_count(boxes.most_elements);
  // 0 where members have different ones.
  if (boxes.most_elements <= 0) c_->most_elements_ = std::nullopt;
  c_->in_count_ = boxes.in_box.num_elements();
  c_->out_count_ = boxes.out_box.num_elements();
  c_->in_place_.rule = Rule::kNever;
  c_->out_box_ = std::move(boxes.out_box);
  return absl::OkStatus();
}

Status CollectiveMaker::set_exchange(BoxExchange boxes) {
  TESSERA_RETURN_IF_ERROR(set_boxes(boxes, nullptr));
  if (boxes.fill.has_value()) {
    TESSERA_RETURN_IF_ERROR(validate_reduction(*boxes.fill, spec_.dtype));
    if (place_.num_members > 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "fill is of an exchange in a group of one, and the group has ", place_.num_members));
    }
  }
  c_->fill_ = boxes.fill;
  int64_t pulled = 0;
  for (const BoxPull& pull : boxes.pulls) {
    pulled = saturating_add(pulled, pull.box.num_elements());
  }
  c_->pulls_ = std::move(boxes.pulls);
  c_->replicas_ = std::move(boxes.replicas);
  const bool is_shared = !c_->replicas_.empty();
  c_->access_.do_peers_write_output = is_shared && c_->replicas_[0] == place_.position;
  c_->access_.ends_together = is_shared;
  set_bytes_written(std::max(saturating_mul(pulled, place_.num_members), boxes.elements_written));
  return absl::OkStatus();
}

Status CollectiveMaker::set_reduce_boxes(BoxExchange boxes) {
  TESSERA_RETURN_IF_ERROR(validate_reduction(spec_.op, spec_.dtype));
  const Box reduced = boxes.out_box;
  TESSERA_RETURN_IF_ERROR(set_boxes(boxes, &reduced));
  c_->signature_.reduction = spec_.op;
  c_->reduction_ = {c_->out_box_, BoxReduction::Target::kOwn, {}, std::move(boxes.pulls)};
  set_bytes_written_by_all(*c_->out_count_);
  return absl::OkStatus();
}

StatusOr<Collective::Ptr> Collective::make(GroupPlace place, const CollectiveSpec& spec) {
  return CollectiveMaker(place, spec).make();
}

// Has the signature of the operation where the spec makes one: a member that arrives late then gets
// the verdict of the operation that it was meant for.
Collective::Ptr Collective::refused(GroupPlace place, const CollectiveSpec& spec, Status error) {
  const StatusOr<std::shared_ptr<Collective>> made = CollectiveMaker(place, spec).make();
  const std::shared_ptr<Collective> c =
      made.ok() ? *made : CollectiveMaker(place, spec).make_unchecked();
  c->signature_.count = spec.count;
  c->error_ = std::move(error);
  return c;
}

// Part k of the output comes from member k: its whole input, or the part for this member where its
// input has a part for each member.
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

StatusOr<absl::Span<const BoxPull>> Collective::pulls(absl::Span<const int64_t* const> peer_counts,
                                                      std::vector<BoxPull>& made) const {
  if (pulls_from_ == PullsFrom::kList) return absl::MakeConstSpan(pulls_);
  if (needs_peer_counts()) {
    TESSERA_RETURN_IF_ERROR(check_peer_counts(peer_counts, place_.num_members));
  }
  made = pulls_of_parts(peer_counts);
  return absl::MakeConstSpan(made);
}

std::vector<int64_t> own_counts(const Collective& c) {
  std::vector<int64_t> both;
  both.reserve(c.counts().size() + c.received_counts().size());
  for (const Counts* counts : {&c.counts(), &c.received_counts()}) {
    for (int k = 0; k < counts->size(); ++k) both.push_back((*counts)[k]);
  }
  return both;
}

ReducedChunk chunk_of(const Collective& c, int position) {
  if (c.kind() == OpKind::kReduceScatter) {
    return {c.counts().sum_before(position), c.counts()[position]};
  }
  const int64_t line = 64 / dtype_size(c.dtype());
  const int64_t num_lines = c.count() / line + (c.count() % line != 0 ? 1 : 0);
  const auto cut = [&](int64_t k) {
    const int64_t lines = ceil_mul_div(k, num_lines, c.place().num_members);
    return std::min(c.count(), saturating_mul(lines, line));
  };
  return {cut(position), cut(position + 1) - cut(position)};
}

}  // namespace tessera
