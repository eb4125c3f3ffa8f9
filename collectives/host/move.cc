// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/move.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/math.h"
#include "collectives/host/kernels.h"

namespace tessera::host {
namespace {

using Members = absl::Span<const MemberMemory>;

// Members of a group whose lists need no memory from the heap.
constexpr size_t kInlineMembers = 16;

int64_t sum_before(absl::Span<const int64_t> counts, int end) {
  return std::accumulate(counts.begin(), counts.begin() + end, int64_t{0});
}

// Decided once for all that a member does, by what every member knows as well.
Stores stores_for(const CollectiveCall& call, Members members) {
  return choose_stores(bytes_written(call, members), last_level_cache_bytes());
}

// Reduces elements [first, first + count) of all ins into the same place of `outs`.
void reduce_range(const CollectiveCall& call, Members members, int64_t first, int64_t count,
                  absl::Span<std::byte* const> outs) {
  const int64_t offset = first * dtype_size(call.dtype);
  absl::InlinedVector<const std::byte*, kInlineMembers> terms;
  for (const MemberMemory& member : members) terms.push_back(member.in + offset);
  reduce(call.dtype, call.reduction, terms, outs, count, stores_for(call, members));
}

// Member k of P owns a chunk of about count / P elements, cut at 64-byte lines: it adds the terms
// of its chunk and writes the result to every output that wants it.
void reduce_own_chunk(const CollectiveCall& call, int position, Members members) {
  const int64_t size = dtype_size(call.dtype);
  const int64_t line = 64 / size;
  const int64_t num_lines = (call.count + line - 1) / line;
  const auto cut = [&](int64_t k) {
    return std::min(call.count,
                    ceil_mul_div(k, num_lines, static_cast<int64_t>(members.size())) * line);
  };
  const int64_t first = cut(position);
  const int64_t count = cut(position + 1) - first;
  if (count == 0) return;
  absl::InlinedVector<std::byte*, kInlineMembers> outs;
  if (!call.replicas.empty()) outs.push_back(members[position].out + first * size);
  for (size_t k = 0; call.replicas.empty() && k < members.size(); ++k) {
    if (call.kind == OpKind::kAllReduce || static_cast<int>(k) == call.root) {
      outs.push_back(members[k].out + first * size);
    }
  }
  reduce_range(call, members, first, count, outs);
}

void all_gather(const CollectiveCall& call, int position, Members members) {
  const int64_t size = dtype_size(call.dtype);
  const int n = static_cast<int>(members.size());
  const Stores stores = stores_for(call, members);
  // Each member starts at itself, so that not all read the same input at the same time.
  for (int k = 0; k < n; ++k) {
    const int source = (position + k) % n;
    copy_bytes(members[position].out + sum_before(call.counts, source) * size, members[source].in,
               call.counts[source] * size, stores);
  }
}

void reduce_scatter(const CollectiveCall& call, int position, Members members) {
  const int64_t count = call.counts[position];
  if (count == 0) return;
  reduce_range(call, members, sum_before(call.counts, position), count,
               absl::MakeConstSpan(&members[position].out, 1));
}

Status check_counts(const CollectiveCall& call, Members members) {
  const int n = static_cast<int>(members.size());
  // Everybody checks all pairs: a member that moved its bytes while another one had found an error
  // would read memory that is no longer lent to it.
  for (int target = 0; target < n; ++target) {
    for (int source = 0; source < n; ++source) {
      const int64_t sent = members[source].counts[target];
      const int64_t expected = members[target].counts[n + source];
      if (sent == expected) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(call.label, ": member ", source, " sends ", sent, " elements to member ",
                       target, ", which expects ", expected, "; make the counts of both equal"));
    }
  }
  return absl::OkStatus();
}

Status all_to_all(const CollectiveCall& call, int position, Members members) {
  TESSERA_RETURN_IF_ERROR(check_counts(call, members));
  const int64_t size = dtype_size(call.dtype);
  const int n = static_cast<int>(members.size());
  const Stores stores = stores_for(call, members);
  for (int k = 0; k < n; ++k) {
    const int source = (position + k) % n;
    const absl::Span<const int64_t> sent(members[source].counts, n);
    copy_bytes(members[position].out + sum_before(call.recv_counts, source) * size,
               members[source].in + sum_before(sent, position) * size,
               call.recv_counts[source] * size, stores);
  }
  return absl::OkStatus();
}

// What the caller says of a source must fit what the source itself published.
Status check_source(const CollectiveCall& call, const BoxPull& pull, Members members) {
  const int64_t held = members[pull.source].in_count;
  if (pull.source_box.num_elements() == held) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(call.label, ": member ", pull.source, " holds ", held,
                   " elements, and the pull says it holds ", pull.source_box.to_string(),
                   "; give the box that the member passed as its own"));
}

// What a member writes of the output that it shares with its replicas: a slice of the first dim
// that has enough for all, else of the longest. A scalar is written by the first.
std::optional<Box> own_slice(const CollectiveCall& call, int position) {
  Box slice = call.out_box;
  const auto own = std::find(call.replicas.begin(), call.replicas.end(), position);
  if (own == call.replicas.end()) return slice;
  if (slice.sizes.empty() && own != call.replicas.begin()) return std::nullopt;
  if (slice.sizes.empty()) return slice;
  const int64_t parts = static_cast<int64_t>(call.replicas.size());
  const int64_t part = own - call.replicas.begin();
  auto dim = std::find_if(slice.sizes.begin(), slice.sizes.end(),
                          [parts](int64_t size) { return size >= parts; });
  if (dim == slice.sizes.end()) dim = std::max_element(slice.sizes.begin(), slice.sizes.end());
  const int64_t begin = ceil_mul_div(part, *dim, parts);
  const int64_t end = ceil_mul_div(part + 1, *dim, parts);
  slice.offsets[dim - slice.sizes.begin()] += begin;
  *dim = end - begin;
  return slice;
}

Status check_sources(const CollectiveCall& call, Members members) {
  for (const BoxPull& pull : call.pulls) {
    TESSERA_RETURN_IF_ERROR(check_source(call, pull, members));
  }
  return absl::OkStatus();
}

Status pull_boxes(const CollectiveCall& call, int position, Members members) {
  TESSERA_RETURN_IF_ERROR(check_sources(call, members));
  const BoxView out = {members[position].out, call.out_box};
  absl::InlinedVector<BoxCopy, kInlineMembers> copies;
  std::vector<Box> parts;  // of the pulls, where this member writes a slice
  parts.reserve(call.pulls.size());
  const std::optional<Box> slice = own_slice(call, position);
  for (const BoxPull& pull : call.pulls) {
    const Box* box = &pull.box;
    if (!call.replicas.empty()) {
      if (!slice.has_value()) break;
      box = &parts.emplace_back(intersect(pull.box, *slice));
      if (box->is_empty()) continue;
    }
    copies.push_back({*box, {members[pull.source].in, pull.source_box}});
  }
  copy_boxes(copies, out, dtype_size(call.dtype), stores_for(call, members));
  return absl::OkStatus();
}

Status reduce_own_box(const CollectiveCall& call, int position, Members members) {
  TESSERA_RETURN_IF_ERROR(check_sources(call, members));
  if (call.out_box.is_empty()) return absl::OkStatus();
  absl::InlinedVector<ConstBoxView, kInlineMembers> terms;
  for (size_t k = 0; k < members.size(); ++k) {
    terms.push_back({members[k].in, call.pulls[k].source_box});
  }
  reduce_box(call.dtype, call.reduction, call.out_box, terms, {members[position].out, call.out_box},
             stores_for(call, members));
  return absl::OkStatus();
}

void gather(const CollectiveCall& call, int position, Members members) {
  if (position == call.root) all_gather(call, position, members);
}

}  // namespace

Status move_bytes(const CollectiveCall& call, int position, Members members) {
  const int64_t size = dtype_size(call.dtype);
  const MemberMemory& own = members[position];
  switch (call.kind) {
    case OpKind::kAllReduce:
    case OpKind::kReduce:
      reduce_own_chunk(call, position, members);
      break;
    case OpKind::kBroadcast:
      copy_bytes(own.out, members[call.root].in, call.count * size, stores_for(call, members));
      break;
    case OpKind::kAllGather:
      all_gather(call, position, members);
      break;
    case OpKind::kReduceScatter:
      reduce_scatter(call, position, members);
      break;
    case OpKind::kAllToAll:
      return all_to_all(call, position, members);
    case OpKind::kGather:
      gather(call, position, members);
      break;
    case OpKind::kScatter:
      copy_bytes(own.out, members[call.root].in + sum_before(call.counts, position) * size,
                 call.counts[position] * size, stores_for(call, members));
      break;
    case OpKind::kSendRecv:
      copy_bytes(own.out, members[0].in, call.count * size, stores_for(call, members));
      break;
    case OpKind::kBarrier:
      if (own.out != nullptr) {
        reduce_range(call, members, 0, call.count, absl::MakeConstSpan(&own.out, 1));
      }
      break;
    case OpKind::kExchange:
      return pull_boxes(call, position, members);
    case OpKind::kReduceBoxes:
      return reduce_own_box(call, position, members);
  }
  return absl::OkStatus();
}

Status check_part(const CollectiveCall& call, Members members) {
  if (call.kind == OpKind::kAllToAll) return check_counts(call, members);
  return check_sources(call, members);
}

int64_t bytes_written(const CollectiveCall& call, absl::Span<const MemberMemory> members) {
  const int64_t n = static_cast<int64_t>(members.size());
  const auto sum_of = [](const std::vector<int64_t>& counts) {
    return sum_before(counts, static_cast<int>(counts.size()));
  };
  int64_t elements = 0;
  switch (call.kind) {
    case OpKind::kAllReduce:
    case OpKind::kBroadcast:
      elements = n * call.count;
      break;
    case OpKind::kReduce:
    case OpKind::kSendRecv:
    case OpKind::kBarrier:
      elements = call.count;
      break;
    case OpKind::kAllGather:
      elements = n * sum_of(call.counts);
      break;
    case OpKind::kReduceScatter:
    case OpKind::kGather:
    case OpKind::kScatter:
      elements = sum_of(call.counts);
      break;
    case OpKind::kAllToAll:
      for (const MemberMemory& member : members) {
        elements += sum_before({member.counts, members.size()}, static_cast<int>(n));
      }
      break;
    case OpKind::kExchange:
      for (const BoxPull& pull : call.pulls) elements += n * pull.box.num_elements();
      if (!call.replicas.empty()) elements /= static_cast<int64_t>(call.replicas.size());
      break;
    case OpKind::kReduceBoxes:
      elements = n * call.out_box.num_elements();
      break;
  }
  return elements * dtype_size(call.dtype);
}

bool peers_write_out(const CollectiveCall& call, int position) {
  if (!call.replicas.empty()) return position == call.replicas[0];
  return call.kind == OpKind::kAllReduce || (call.kind == OpKind::kReduce && position == call.root);
}

}  // namespace tessera::host
