// SPDX-License-Identifier: Apache-2.0
#include "collectives/group.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/math.h"
#include "base/status.h"
#include "collectives/collective.h"
#include "collectives/counts.h"
#include "collectives/group_backend.h"
#include "collectives/pending_work.h"

namespace tessera {
namespace {

// The Work of an empty group: it fails.
class EmptyGroupWork final : public internal::PendingWork {
 public:
  explicit EmptyGroupWork(absl::string_view call) : call_(call) {}
  bool done() const override { return true; }
  Status wait_until(absl::Time) override {
    return absl::FailedPreconditionError(absl::StrCat(
        "Group::", call_, "() of an empty Group; assign a group of Client::group() to it first"));
  }

 private:
  const absl::string_view call_;  // a literal
};

Work empty_group_work(absl::string_view call) {
  return internal::make_work(std::make_shared<EmptyGroupWork>(call));
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

Status check_memory(DType dtype, const internal::CallMemory& memory, const Arguments& arguments) {
  TESSERA_RETURN_IF_ERROR(validate_dtype(dtype));
  TESSERA_RETURN_IF_ERROR(
      check_memory("in", memory.in, arguments.in_buffer != nullptr, memory.in_count, dtype));
  return check_memory("out", memory.out, arguments.out_buffer != nullptr, memory.out_count, dtype);
}

Status size_error(absl::string_view what, int64_t given, int64_t expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, " has ", given, " elements, and needs ", expected));
}

Status check_overlap(const Collective& collective, const internal::CallMemory& memory) {
  using Rule = Collective::InPlace::Rule;
  const Collective::InPlace& in_place = collective.in_place();
  if (memory.in_count == 0 || memory.out_count == 0) return absl::OkStatus();
  if (in_place.rule == Rule::kAnywhere) return absl::OkStatus();
  const int64_t element = dtype_size(collective.dtype());
  const auto in = reinterpret_cast<uintptr_t>(memory.in);
  const auto out = reinterpret_cast<uintptr_t>(memory.out);
  const uintptr_t in_end = in + memory.in_count * element;
  const uintptr_t out_end = out + memory.out_count * element;
  if (in_end <= out || out_end <= in) return absl::OkStatus();
  const bool has_in_place = in_place.rule == Rule::kExactly;
  if (has_in_place && in + in_place.in_offset * element == out + in_place.out_offset * element) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("in and out of member ", collective.place().position, " overlap",
                   has_in_place ? "; only exactly in place is allowed" : "; use separate memory"));
}

// Checks that the memory has the sizes that the Collective asks for.
Status check_sizes(const Collective& collective, const internal::CallMemory& memory) {
  const std::optional<int64_t> in_count = collective.in_count();
  const std::optional<int64_t> out_count = collective.out_count();
  if (memory.in_count != in_count.value_or(memory.in_count)) {
    return size_error("in", memory.in_count, *in_count);
  }
  if (memory.out_count != out_count.value_or(memory.out_count)) {
    return size_error("out", memory.out_count, *out_count);
  }
  return check_overlap(collective, memory);
}

}  // namespace

std::string Group::to_string() const {
  const absl::Span<const int> ids = device_ids();
  if (ids.empty()) return "empty group";
  std::string text = ids.size() == 1 ? "group of device " : "group of devices ";
  for (size_t first = 0; first < ids.size();) {
    size_t last = first;  // of a run of consecutive ids, which is worth a dash from three on
    while (last + 1 < ids.size() && ids[last + 1] == ids[last] + 1) ++last;
    if (last < first + 2) last = first;
    absl::StrAppend(&text, first == 0 ? "" : ", ", ids[first]);
    if (last > first) absl::StrAppend(&text, "-", ids[last]);
    first = last + 1;
  }
  return absl::StrCat(text, ", as device ", ids[position()]);
}

int Group::position() const { return member_ == nullptr ? 0 : member_->position(); }

absl::Span<const int> Group::device_ids() const {
  return member_ == nullptr ? absl::Span<const int>() : member_->device_ids();
}

Work Group::start(const Call& call, const internal::CallMemory& memory) const {
  if (member_ == nullptr) return empty_group_work(op_kind_name(call.kind));
  const int size = member_->size();
  const auto counts_or = [&](int64_t equal) {
    return call.counts.empty() ? Counts::equal(size, equal) : Counts::of(call.counts);
  };
  CollectiveSpec spec = {.kind = call.kind,
                         .dtype = memory.dtype,
                         .op = call.op,
                         .root = call.root,
                         .order = member_->order()};
  switch (call.kind) {
    case OpKind::kAllReduce:
    case OpKind::kReduce:
      spec.count = memory.in_count;
      break;
    case OpKind::kBroadcast:
      spec.count = memory.out_count;
      break;
    case OpKind::kAllGather:
      spec.count = memory.out_count;
      spec.counts = counts_or(memory.in_count);
      break;
    case OpKind::kReduceScatter:
      spec.count = memory.in_count;
      spec.counts = counts_or(memory.out_count);
      break;
    case OpKind::kAllToAll:
      if (call.has_equal_parts) {
        spec.count = memory.in_count;
        spec.counts = Counts::equal(size, memory.in_count / size);
        spec.received_counts = spec.counts;
      } else {
        spec.counts = Counts::of(call.counts);
        spec.received_counts = Counts::of(call.received_counts);
      }
      break;
    case OpKind::kGather:
      spec.counts = counts_or(memory.in_count);
      break;
    case OpKind::kScatter:
      spec.counts = counts_or(memory.out_count);
      break;
    default:
      break;
  }
  return member_->start(spec, memory);
}

Work Group::start_exchange(const internal::CallMemory& memory, const Box& in_box,
                           const Box& out_box, absl::Span<const BoxPull> pulls) const {
  if (member_ == nullptr) return empty_group_work("exchange");
  const BoxExchange boxes = {in_box, out_box, std::vector<BoxPull>(pulls.begin(), pulls.end())};
  return member_->start({.kind = OpKind::kExchange,
                         .dtype = memory.dtype,
                         .order = member_->order(),
                         .boxes = &boxes},
                        memory);
}

Work Group::start_message(const internal::CallMemory& memory, int peer, bool sends) const {
  if (member_ == nullptr) return empty_group_work(sends ? "send" : "recv");
  const int own = position();
  const MessageEnds ends = {.sender = sends ? own : peer, .receiver = sends ? peer : own};
  return member_->start({.num_members = 2, .position = sends ? 0 : 1},
                        {.kind = OpKind::kSendRecv,
                         .dtype = memory.dtype,
                         .count = memory.in_count + memory.out_count,
                         .ends = ends},
                        memory, {});
}

Work Group::barrier() const { return start({.kind = OpKind::kBarrier}, internal::CallMemory()); }

namespace internal {

Work GroupMember::start(GroupPlace place, const CollectiveSpec& spec, const CallMemory& memory,
                        Arguments arguments) const {
  Collective::Ptr collective = prepare(place, spec, memory, arguments);
  arguments.in = memory.in;
  arguments.out = memory.out;
  return backend_->start(std::move(collective), std::move(arguments));
}

Collective::Ptr GroupMember::prepare(GroupPlace place, const CollectiveSpec& spec,
                                     const CallMemory& memory, const Arguments& arguments) const {
  Status error = check_memory(spec.dtype, memory, arguments);
  Collective::Ptr prepared = prepared_.find(place, spec);
  if (prepared == nullptr) {
    StatusOr<Collective::Ptr> made = Collective::make(place, spec);
    error.Update(made.status());
    if (!error.ok()) return Collective::refused(place, spec, std::move(error));
    prepared = *std::move(made);
    prepared_.keep(prepared);
  }
  error.Update(check_sizes(*prepared, memory));
  if (!error.ok()) return Collective::refused(place, spec, std::move(error));
  return prepared;
}

}  // namespace internal
}  // namespace tessera
