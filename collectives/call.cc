// SPDX-License-Identifier: Apache-2.0
#include "collectives/call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/math.h"

namespace tessera {
namespace {

// Of each member, and the same on all.
bool counts_members(OpKind kind) {
  return kind == OpKind::kAllGather || kind == OpKind::kReduceScatter || kind == OpKind::kGather ||
         kind == OpKind::kScatter;
}

Status size_error(absl::string_view what, int64_t given, int64_t expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, " has ", given, " elements, and needs ", expected));
}

// That `count` elements at `memory` can be memory at all.
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

Status check_overlap(const CollectiveCall& call) {
  using Rule = Collective::InPlace::Rule;
  const Collective::InPlace& in_place = call.collective->in_place();
  if (call.in_count == 0 || call.out_count == 0) return absl::OkStatus();
  if (in_place.rule == Rule::kAnywhere) return absl::OkStatus();
  const int64_t element = dtype_size(call.dtype);
  const auto in = reinterpret_cast<uintptr_t>(call.in);
  const auto out = reinterpret_cast<uintptr_t>(call.out);
  const uintptr_t in_end = in + call.in_count * element;
  const uintptr_t out_end = out + call.out_count * element;
  if (in_end <= out || out_end <= in) return absl::OkStatus();
  const bool has_in_place = in_place.rule == Rule::kExactly;
  if (has_in_place && in + in_place.in_offset * element == out + in_place.out_offset * element) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("in and out of member ", call.collective->place().position, " overlap",
                   has_in_place ? "; only exactly in place is allowed" : "; use separate memory"));
}

// A count that is not 0 says that all parts are equal, on all members.
StatusOr<Collective::Ptr> make_all_to_all(const CollectiveCall& call, GroupPlace place) {
  const int64_t part = call.count / place.num_members;
  const Counts equal = Counts::equal(place.num_members, part);
  if (call.count > 0 && call.counts == equal && call.recv_counts == equal) {
    return Collective::all_to_all(place, call.dtype, part);
  }
  StatusOr<Collective::Ptr> unequal =
      Collective::all_to_all(place, call.dtype, call.counts, call.recv_counts);
  if (!unequal.ok() || call.count <= 0) return unequal;
  return absl::InvalidArgumentError(
      absl::StrCat("count is ", call.count, ", and its ", place.num_members,
                   " parts are not equal; make count 0 where they differ"));
}

StatusOr<Collective::Ptr> make(const CollectiveCall& call, GroupPlace place) {
  const DType dtype = call.dtype;
  const auto boxes = [&] {
    return BoxExchange{call.in_box, call.out_box, call.pulls, false, call.count, call.replicas};
  };
  switch (call.kind) {
    case OpKind::kAllReduce:
      return Collective::all_reduce(place, dtype, call.reduction, call.count, call.replicas);
    case OpKind::kReduce:
      return Collective::reduce(place, dtype, call.reduction, call.count, call.root);
    case OpKind::kBroadcast:
      return Collective::broadcast(place, dtype, call.count, call.root);
    case OpKind::kAllGather:
      return Collective::all_gather(place, dtype, call.counts);
    case OpKind::kReduceScatter:
      return Collective::reduce_scatter(place, dtype, call.reduction, call.counts);
    case OpKind::kAllToAll:
      return make_all_to_all(call, place);
    case OpKind::kGather:
      return Collective::gather(place, dtype, call.counts, call.root);
    case OpKind::kScatter:
      return Collective::scatter(place, dtype, call.counts, call.root);
    case OpKind::kSendRecv:
      return Collective::message(place.position, dtype, call.count);
    case OpKind::kBarrier:
      return Collective::barrier(place, dtype, call.count);
    case OpKind::kExchange:
      return Collective::exchange(place, dtype, boxes());
    case OpKind::kReduceBoxes:
      return Collective::reduce_boxes(place, dtype, call.reduction, boxes());
  }
  return absl::InternalError("an operation of an unknown kind");
}

Status check(CollectiveCall& call, GroupPlace place) {
  TESSERA_RETURN_IF_ERROR(validate_dtype(call.dtype));
  TESSERA_RETURN_IF_ERROR(
      check_memory("in", call.in, call.in_buffer != nullptr, call.in_count, call.dtype));
  TESSERA_RETURN_IF_ERROR(
      check_memory("out", call.out, call.out_buffer != nullptr, call.out_count, call.dtype));
  prepare(call, place);
  TESSERA_RETURN_IF_ERROR(call.error);
  const std::optional<int64_t> in_count = call.collective->in_count();
  const std::optional<int64_t> out_count = call.collective->out_count();
  if (call.in_count != in_count.value_or(call.in_count)) {
    return size_error("in", call.in_count, *in_count);
  }
  if (call.out_count != out_count.value_or(call.out_count)) {
    return size_error("out", call.out_count, *out_count);
  }
  return check_overlap(call);
}

}  // namespace

CollectiveCall call_of(Collective::Ptr collective, Arguments arguments) {
  const Collective& c = *collective;
  CollectiveCall call;
  call.kind = c.kind();
  call.dtype = c.dtype();
  call.reduction = c.op();
  call.root = c.root();
  call.count = c.count();
  call.in = arguments.in;
  call.in_count = c.in_count().value_or(0);
  call.out = arguments.out;
  call.out_count = c.out_count().value_or(0);
  call.in_buffer = std::move(arguments.in_buffer);
  call.out_buffer = std::move(arguments.out_buffer);
  call.counts = c.counts();
  call.recv_counts = c.received_counts();
  call.replicas.assign(c.replicas().begin(), c.replicas().end());
  call.detail = std::move(arguments.detail);
  call.detail_field = arguments.detail_field;
  call.label = std::move(arguments.label);
  call.caller_waits = arguments.caller_waits;
  call.timeout = arguments.timeout;
  call.deadline = arguments.deadline;
  call.collective = std::move(collective);
  return call;
}

bool has_agreed_counts(const CollectiveCall& call) {
  return counts_members(call.kind) && call.detail.empty();
}

void prepare(CollectiveCall& call, GroupPlace place) {
  if (call.collective != nullptr || !call.error.ok()) return;
  StatusOr<Collective::Ptr> made = make(call, place);
  if (made.ok()) {
    call.collective = *std::move(made);
  } else {
    call.error = made.status();
  }
}

void validate(CollectiveCall& call, GroupPlace place) {
  if (call.error.ok()) call.error = check(call, place);
  if (call.detail_field.empty()) call.detail_field = "counts";
}

}  // namespace tessera
