// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/move.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/math.h"
#include "collectives/counts.h"
#include "collectives/host/kernels.h"

namespace tessera::host {
namespace {

using Members = absl::Span<const MemberMemory>;

// What a member of an all_to_all sends to those before `position`.
int64_t sent_before(const CollectiveCall& call, const MemberMemory& member, int position) {
  if (!needs_peer_counts(call)) return call.counts.sum_before(position);
  return std::accumulate(member.counts, member.counts + position, int64_t{0});
}

// Decided once for all that a member does, by what every member knows as well.
Stores stores_for(const CollectiveCall& call, Members members) {
  return choose_stores(bytes_written(call, members), last_level_cache_bytes());
}

// The host all-reduce works as follows. The elements are cut into one chunk per member, at 64-byte
// lines. Each member reads its chunk of all inputs, adds them in ascending order of the members,
// and writes the sum into its chunk of every output. So every element is reduced once, in one
// order, and a member reads S bytes and writes S bytes for vectors of S bytes, in one step. A
// reduce writes the chunks to the root's output alone; a reduce_scatter's chunks are the parts,
// written to the member's own output.
void reduce_own_chunk(const CollectiveCall& call, int position, Members members) {
  const Chunk chunk = own_chunk(call, position, members.size());
  const Outputs outs = chunk_outputs(call, position, members);
  if (chunk.count == 0 || outs.empty()) return;
  const int64_t offset = chunk.first * dtype_size(call.dtype);
  absl::InlinedVector<const std::byte*, kInlineMembers> terms;
  for (const MemberMemory& member : members) terms.push_back(member.in + offset);
  reduce(call.dtype, call.reduction, terms, outs, chunk.count, stores_for(call, members));
}

// All other dense operations: each member copies what its own output needs, straight from the
// members' inputs. It begins with its own piece and goes on in ascending order from there, so that
// members do not read the same input at the same time.
void copy_pieces(const CollectiveCall& call, int position, Members members) {
  const int64_t size = dtype_size(call.dtype);
  const Stores stores = stores_for(call, members);
  for (const PieceCopy& piece : own_copies(call, position, members)) {
    copy_bytes(members[position].out + piece.to * size,
               members[piece.source].in + piece.from * size, piece.count * size, stores);
  }
}

Status check_counts(const CollectiveCall& call, Members members) {
  if (!needs_peer_counts(call)) return absl::OkStatus();
  const int n = static_cast<int>(members.size());
  // Every member checks all pairs: one that moved its bytes while another had found an error would
  // read memory that is no longer lent to it.
  for (int target = 0; target < n; ++target) {
    for (int source = 0; source < n; ++source) {
      const int64_t sent = members[source].counts[target];
      const int64_t expected = members[target].counts[n + source];
      if (sent == expected) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("member ", source, " sends ", sent, " elements to member ", target,
                       ", which expects ", expected, "; make the counts of both equal"));
    }
  }
  return absl::OkStatus();
}

// What the caller says of a source must fit what the source itself published.
Status check_source(const BoxPull& pull, Members members) {
  const int64_t held = members[pull.source].in_count;
  if (pull.source_box.num_elements() == held) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "member ", pull.source, " holds ", held, " elements, and the pull says it holds ",
      pull.source_box.to_string(), "; give the box that the member passed as its own"));
}

Status check_sources(const CollectiveCall& call, Members members) {
  for (const BoxPull& pull : call.pulls) {
    TESSERA_RETURN_IF_ERROR(check_source(pull, members));
  }
  return absl::OkStatus();
}

Status pull_boxes(const CollectiveCall& call, int position, Members members) {
  TESSERA_RETURN_IF_ERROR(check_sources(call, members));
  const BoxView out = {members[position].out, call.out_box};
  absl::InlinedVector<BoxCopy, kInlineMembers> copies;
  for (const BoxPull& pull : call.pulls) {
    copies.push_back({pull.box, {members[pull.source].in, pull.source_box}});
  }
  copy_boxes(copies, out, dtype_size(call.dtype), stores_for(call, members));
  return absl::OkStatus();
}

Status reduce_own_box(const CollectiveCall& call, int position, Members members) {
  TESSERA_RETURN_IF_ERROR(check_sources(call, members));
  if (call.out_box->is_empty()) return absl::OkStatus();
  absl::InlinedVector<ConstBoxView, kInlineMembers> terms;
  for (size_t k = 0; k < members.size(); ++k) {
    terms.push_back({members[k].in, call.pulls[k].source_box});
  }
  reduce_box(call.dtype, call.reduction, call.out_box, terms, {members[position].out, call.out_box},
             stores_for(call, members));
  return absl::OkStatus();
}

}  // namespace

bool needs_peer_counts(const CollectiveCall& call) {
  return call.kind == OpKind::kAllToAll && !has_equal_parts(call);
}

std::vector<int64_t> both_counts(const CollectiveCall& call) {
  std::vector<int64_t> both;
  both.reserve(call.counts.size() + call.recv_counts.size());
  for (const Counts* counts : {&call.counts, &call.recv_counts}) {
    for (int k = 0; k < counts->size(); ++k) both.push_back((*counts)[k]);
  }
  return both;
}

Chunk own_chunk(const CollectiveCall& call, int position, size_t num_members) {
  if (call.kind == OpKind::kReduceScatter) {
    return {call.counts.sum_before(position), call.counts[position]};
  }
  if (call.kind == OpKind::kBarrier) return {0, call.count};
  const int64_t line = 64 / dtype_size(call.dtype);
  const int64_t num_lines = (call.count + line - 1) / line;
  const auto cut = [&](int64_t k) {
    const int64_t lines = ceil_mul_div(k, num_lines, static_cast<int64_t>(num_members));
    return std::min(call.count, lines * line);
  };
  return {cut(position), cut(position + 1) - cut(position)};
}

Outputs chunk_outputs(const CollectiveCall& call, int position, Members members) {
  const bool is_own = call.kind == OpKind::kReduceScatter || call.kind == OpKind::kBarrier;
  const int64_t offset =
      is_own ? 0 : own_chunk(call, position, members.size()).first * dtype_size(call.dtype);
  std::byte* const own = members[position].out;
  if (own == nullptr && is_own) return {};
  if (is_own || !call.replicas.empty()) return {own + offset};
  if (call.kind == OpKind::kReduce) return {members[call.root].out + offset};
  Outputs outs;
  for (const MemberMemory& member : members) outs.push_back(member.out + offset);
  return outs;
}

PieceCopies own_copies(const CollectiveCall& call, int position, Members members) {
  const int n = static_cast<int>(members.size());
  PieceCopies pieces;
  switch (call.kind) {
    case OpKind::kBroadcast:
      return {{call.root, 0, 0, call.count}};
    case OpKind::kSendRecv:
      return {{0, 0, 0, call.count}};
    case OpKind::kScatter:
      return {{call.root, call.counts.sum_before(position), 0, call.counts[position]}};
    case OpKind::kGather:
      if (position != call.root) return {};
      [[fallthrough]];
    case OpKind::kAllGather:
      for (int k = 0; k < n; ++k) {
        const int source = (position + k) % n;
        pieces.push_back({source, 0, call.counts.sum_before(source), call.counts[source]});
      }
      return pieces;
    case OpKind::kAllToAll:
      for (int k = 0; k < n; ++k) {
        const int source = (position + k) % n;
        pieces.push_back({source, sent_before(call, members[source], position),
                          call.recv_counts.sum_before(source), call.recv_counts[source]});
      }
      return pieces;
    default:
      return {};
  }
}

Status move_bytes(const CollectiveCall& call, int position, Members members) {
  switch (call.kind) {
    case OpKind::kAllReduce:
    case OpKind::kReduce:
    case OpKind::kReduceScatter:
    case OpKind::kBarrier:
      reduce_own_chunk(call, position, members);
      break;
    case OpKind::kAllToAll:
      TESSERA_RETURN_IF_ERROR(check_counts(call, members));
      [[fallthrough]];
    case OpKind::kBroadcast:
    case OpKind::kAllGather:
    case OpKind::kGather:
    case OpKind::kScatter:
    case OpKind::kSendRecv:
      copy_pieces(call, position, members);
      break;
    case OpKind::kExchange:
      return pull_boxes(call, position, members);
    case OpKind::kReduceBoxes:
      return reduce_own_box(call, position, members);
  }
  return absl::OkStatus();
}

Status check_part(const CollectiveCall& call, Members members) {
  const Status status =
      call.kind == OpKind::kAllToAll ? check_counts(call, members) : check_sources(call, members);
  return status.ok() ? status : with_context(status, call.label.to_string());
}

int64_t bytes_written(const CollectiveCall& call, absl::Span<const MemberMemory> members) {
  const int64_t n = static_cast<int64_t>(members.size());
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
      elements = n * call.counts.sum();
      break;
    case OpKind::kReduceScatter:
    case OpKind::kGather:
    case OpKind::kScatter:
      elements = call.counts.sum();
      break;
    case OpKind::kAllToAll:
      for (const MemberMemory& member : members) {
        elements += sent_before(call, member, static_cast<int>(n));
      }
      break;
    case OpKind::kExchange:
      for (const BoxPull& pull : call.pulls) elements += n * pull.box.num_elements();
      break;
    case OpKind::kReduceBoxes:
      elements = n * call.out_box->num_elements();
      break;
  }
  return elements * dtype_size(call.dtype);
}

bool peers_write_out(const CollectiveCall& call, int position) {
  if (!call.replicas.empty()) return position == call.replicas[0];
  return call.kind == OpKind::kAllReduce || (call.kind == OpKind::kReduce && position == call.root);
}

}  // namespace tessera::host
