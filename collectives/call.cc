// SPDX-License-Identifier: Apache-2.0
#include "collectives/call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/math.h"

namespace tessera {
namespace {

// Of each member, and the same on all.
bool counts_members(OpKind kind) {
  return kind == OpKind::kAllGather || kind == OpKind::kReduceScatter || kind == OpKind::kGather ||
         kind == OpKind::kScatter;
}

bool reduces(OpKind kind) {
  return kind == OpKind::kAllReduce || kind == OpKind::kReduce || kind == OpKind::kReduceScatter ||
         kind == OpKind::kReduceBoxes;
}

bool has_root(OpKind kind) {
  return kind == OpKind::kReduce || kind == OpKind::kBroadcast || kind == OpKind::kGather ||
         kind == OpKind::kScatter;
}

Status size_error(absl::string_view what, int64_t given, int64_t expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, " has ", given, " elements, and needs ", expected));
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

// That `count` elements at `memory` can be memory at all: every product of counts and bytes behind
// this check is below 2^63.
Status check_memory(absl::string_view what, const std::byte* memory, bool has_buffer, int64_t count,
                    DType dtype) {
  if (count < 0 || !checked_product({count, dtype_size(dtype)}).has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(what, " has ", count, " elements of ",
                                                   dtype_name(dtype),
                                                   ", more than 2^63 - 1 bytes; pass the span of "
                                                   "memory that exists"));
  }
  if (memory != nullptr || has_buffer || count == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " is null and has ", count, " elements; pass memory, or 0 elements"));
}

// The sizes that in and out must have; -1 where any size will do.
struct Sizes {
  int64_t in = -1;
  int64_t out = -1;
};

Sizes expected_sizes(const CollectiveCall& call, int position) {
  const bool is_root = position == call.root;
  switch (call.kind) {
    case OpKind::kAllReduce:
      return {call.count, call.count};
    case OpKind::kReduce:
      return {call.count, is_root ? call.count : -1};
    case OpKind::kBroadcast:
      return {is_root ? call.count : -1, call.count};
    case OpKind::kAllGather:
      return {call.counts[position], call.counts.sum()};
    case OpKind::kReduceScatter:
      return {call.counts.sum(), call.counts[position]};
    case OpKind::kAllToAll:
      return {call.counts.sum(), call.recv_counts.sum()};
    case OpKind::kGather:
      return {call.counts[position], is_root ? call.counts.sum() : -1};
    case OpKind::kScatter:
      return {is_root ? call.counts.sum() : -1, call.counts[position]};
    case OpKind::kSendRecv:
    case OpKind::kBarrier:
      return {};
    case OpKind::kExchange:
    case OpKind::kReduceBoxes:
      return {call.in_box->num_elements(), call.out_box->num_elements()};
  }
  return {};
}

// Where `in` may be inside `out` (or `out` inside `in`): elements from the start of the larger.
int64_t in_place_offset(const CollectiveCall& call, int position) {
  switch (call.kind) {
    case OpKind::kAllGather:
    case OpKind::kGather:
    case OpKind::kReduceScatter:
    case OpKind::kScatter:
      return call.counts.sum_before(position);
    default:
      return 0;
  }
}

Status check_overlap(const CollectiveCall& call, int position) {
  if (call.in_count == 0 || call.out_count == 0) return absl::OkStatus();
  // An input or an output that no member accesses may overlap anything.
  const bool is_root = position == call.root;
  if (!is_root && (call.kind == OpKind::kReduce || call.kind == OpKind::kGather ||
                   call.kind == OpKind::kBroadcast || call.kind == OpKind::kScatter)) {
    return absl::OkStatus();
  }
  const int64_t element = dtype_size(call.dtype);
  const auto in = reinterpret_cast<uintptr_t>(call.in);
  const auto out = reinterpret_cast<uintptr_t>(call.out);
  const uintptr_t in_end = in + call.in_count * element;
  const uintptr_t out_end = out + call.out_count * element;
  if (in_end <= out || out_end <= in) return absl::OkStatus();
  const bool out_is_part = call.kind == OpKind::kReduceScatter || call.kind == OpKind::kScatter;
  const uintptr_t offset = in_place_offset(call, position) * element;
  const bool has_in_place = call.kind != OpKind::kAllToAll && call.kind != OpKind::kExchange &&
                            call.kind != OpKind::kReduceBoxes;
  if (has_in_place && (out_is_part ? out == in + offset : in == out + offset)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("in and out of member ", position, " overlap",
                   has_in_place ? "; only exactly in place is allowed" : "; use separate memory"));
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

Status check_boxes(const CollectiveCall& call, int num_members) {
  TESSERA_RETURN_IF_ERROR(check_box(call.in_box, call.dtype));
  const Box& out_box = call.out_box;
  TESSERA_RETURN_IF_ERROR(check_box(out_box, call.dtype));
  if (call.kind == OpKind::kReduceBoxes && call.pulls.size() != static_cast<size_t>(num_members)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "boxes of ", call.pulls.size(), " members given, and the group has ", num_members));
  }
  for (const BoxPull& pull : call.pulls) {
    if (pull.source < 0 || pull.source >= num_members) {
      return absl::InvalidArgumentError(absl::StrCat("a pull names member ", pull.source,
                                                     "; the group has 0 to ", num_members - 1));
    }
    TESSERA_RETURN_IF_ERROR(check_box(pull.source_box, call.dtype));
    TESSERA_RETURN_IF_ERROR(check_box(pull.box, call.dtype));
    const Box& box = call.kind == OpKind::kReduceBoxes ? out_box : pull.box;
    if (box.sizes.size() != pull.source_box.sizes.size() ||
        box.sizes.size() != out_box.sizes.size() || !contains(pull.source_box, box) ||
        !contains(out_box, box)) {
      return absl::InvalidArgumentError(
          absl::StrCat("box ", box.to_string(), " is not inside both its source ",
                       pull.source_box.to_string(), " and its target ", out_box.to_string()));
    }
  }
  return absl::OkStatus();
}

Status check(const CollectiveCall& call, int num_members, int position) {
  TESSERA_RETURN_IF_ERROR(validate_dtype(call.dtype));
  TESSERA_RETURN_IF_ERROR(
      check_memory("in", call.in, call.in_buffer != nullptr, call.in_count, call.dtype));
  TESSERA_RETURN_IF_ERROR(
      check_memory("out", call.out, call.out_buffer != nullptr, call.out_count, call.dtype));
  if (reduces(call.kind)) TESSERA_RETURN_IF_ERROR(validate_reduction(call.reduction, call.dtype));
  if (has_root(call.kind) && (call.root < 0 || call.root >= num_members)) {
    return absl::InvalidArgumentError(
        absl::StrCat("root ", call.root, " is no member; the group has 0 to ", num_members - 1));
  }
  const bool is_all_to_all = call.kind == OpKind::kAllToAll;
  if (is_all_to_all || counts_members(call.kind)) {
    TESSERA_RETURN_IF_ERROR(check_counts(call.counts, num_members));
  }
  if (is_all_to_all) {
    TESSERA_RETURN_IF_ERROR(check_counts(call.recv_counts, num_members));
  }
  if (call.kind == OpKind::kExchange || call.kind == OpKind::kReduceBoxes) {
    TESSERA_RETURN_IF_ERROR(check_boxes(call, num_members));
  }
  if (has_equal_parts(call)) {
    const Counts equal = Counts::equal(num_members, call.count / num_members);
    if (call.counts != equal || call.recv_counts != equal) {
      return absl::InvalidArgumentError(
          absl::StrCat("count is ", call.count, ", and its ", num_members,
                       " parts are not equal; make count 0 where they differ"));
    }
  }
  const Sizes sizes = expected_sizes(call, position);
  if (sizes.in >= 0 && call.in_count != sizes.in) return size_error("in", call.in_count, sizes.in);
  if (sizes.out >= 0 && call.out_count != sizes.out) {
    return size_error("out", call.out_count, sizes.out);
  }
  return check_overlap(call, position);
}

}  // namespace

bool is_input_used(const CollectiveCall& call, int position) {
  const bool is_of_root = call.kind == OpKind::kBroadcast || call.kind == OpKind::kScatter;
  return call.in_count > 0 && (!is_of_root || position == call.root);
}

bool has_agreed_counts(const CollectiveCall& call) {
  return counts_members(call.kind) && call.detail.empty();
}

std::string default_label(OpKind kind, DType dtype, ReduceOp reduction, int64_t count,
                          absl::Span<const int> device_ids) {
  std::string label(op_kind_name(kind));
  if (reduces(kind)) absl::StrAppend(&label, " ", reduce_op_name(reduction));
  if (kind != OpKind::kBarrier) absl::StrAppend(&label, " ", dtype_name(dtype));
  if (count > 0) absl::StrAppend(&label, " of ", count, " elements");
  absl::StrAppend(&label, " on devices ", absl::StrJoin(device_ids, ", "));
  return label;
}

void validate(CollectiveCall& call, int num_members, int position) {
  if (call.error.ok()) call.error = check(call, num_members, position);
  if (call.detail_field.empty()) call.detail_field = "counts";
}

}  // namespace tessera
