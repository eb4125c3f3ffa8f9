// SPDX-License-Identifier: Apache-2.0
#include "collectives/move.h"

#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "device/cpu/kernels.h"

namespace tessera {
namespace {

using Members = absl::Span<const MemberMemory>;

// A Collective's box of a source must fit the count that the source published.
Status check_source(int source, const Box& held, Members members) {
  const int64_t passed = members[source].in_count;
  if (held.num_elements() == passed) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("member ", source, " holds ", passed, " elements, and the pull says it holds ",
                   held.to_string(), "; give the box that the member passed as its own"));
}

// Where `box` begins in a dense buffer that holds `held`. Requires boxes of rank 1.
int64_t offset_bytes(const Box& box, const Box& held, int64_t element_bytes) {
  return (box.offsets[0] - held.offsets[0]) * element_bytes;
}

// Where the sum goes. Requires a box of rank 1.
absl::InlinedVector<std::byte*, kInlineMembers> outputs(const Collective& c, Members members) {
  using Target = BoxReduction::Target;
  const BoxReduction& reduction = *c.reduction();
  const int64_t offset = offset_bytes(reduction.box, c.out_box(), dtype_size(c.dtype()));
  absl::InlinedVector<std::byte*, kInlineMembers> outs;
  if (reduction.target == Target::kAll) {
    for (const MemberMemory& member : members) outs.push_back(member.out + offset);
    return outs;
  }
  const int target = reduction.target == Target::kRoot ? c.root() : c.place().position;
  // A barrier may have no output.
  if (members[target].out != nullptr) outs.push_back(members[target].out + offset);
  return outs;
}

// The host all-reduce works as follows. The elements are cut into one chunk per member, at 64-byte
// lines (chunk_of()). Each member reads its chunk of all inputs, adds them in ascending
// order of the members, and writes the sum into its chunk of every output. So every element is
// reduced once, in one order, and a member reads S bytes and writes S bytes for vectors of S bytes,
// in one step. A reduce writes the chunks to the root's output alone; a reduce_scatter's chunks are
// the parts, written to the member's own output.
void reduce_own(const Collective& c, Members members) {
  const BoxReduction& reduction = *c.reduction();
  if (reduction.box.is_empty()) return;
  absl::InlinedVector<cpu::ConstBoxView, kInlineMembers> terms;
  for (size_t k = 0; k < members.size(); ++k) {
    terms.push_back({members[k].in, reduction.held_by(static_cast<int>(k))});
  }
  if (reduction.box.sizes.size() == 1) return reduce_terms(c, terms, outputs(c, members));
  reduce_terms(c, terms, {members[c.place().position].out});
}

}  // namespace

// Each member copies what its own output needs, straight from the members' inputs. Dense pulls
// begin with the member's own, so that members do not read the same input at the same time.
void copy_pulls(const Collective& c, absl::Span<const BoxPull> pulls, Members members) {
  const int64_t size = dtype_size(c.dtype());
  const cpu::Stores stores = cpu::choose_stores(c.bytes_written(), cpu::last_level_cache_bytes());
  std::byte* const out = members[c.place().position].out;
  if (c.fill().has_value()) {
    const auto identity = identity_element(*c.fill(), c.dtype());
    cpu::fill_elements(c.dtype(), identity.data(), out, c.out_box().num_elements());
  }
  if (c.out_box().sizes.size() == 1) {
    for (const BoxPull& pull : pulls) {
      cpu::copy_bytes(out + offset_bytes(pull.box, c.out_box(), size),
                      members[pull.source].in + offset_bytes(pull.box, pull.source_box, size),
                      pull.box.sizes[0] * size, stores);
    }
    return;
  }
  absl::InlinedVector<cpu::BoxCopy, kInlineMembers> copies;
  for (const BoxPull& pull : pulls) {
    copies.push_back({pull.box, {members[pull.source].in, pull.source_box}});
  }
  cpu::copy_boxes(copies, {out, c.out_box()}, size, stores);
}

void reduce_terms(const Collective& c, absl::Span<const cpu::ConstBoxView> terms,
                  absl::Span<std::byte* const> outs) {
  const Box& box = c.reduction()->box;
  const cpu::Stores stores = cpu::choose_stores(c.bytes_written(), cpu::last_level_cache_bytes());
  if (box.sizes.size() != 1) {
    return cpu::reduce_box(c.dtype(), c.op(), box, terms, {outs[0], c.out_box()}, stores);
  }
  absl::InlinedVector<const std::byte*, kInlineMembers> firsts;
  for (const cpu::ConstBoxView& term : terms) {
    firsts.push_back(term.data + offset_bytes(box, term.box, dtype_size(c.dtype())));
  }
  cpu::reduce(c.dtype(), c.op(), firsts, outs, box.sizes[0], stores);
}

StatusOr<absl::Span<const BoxPull>> checked_pulls(const Collective& collective, Members members,
                                                  std::vector<BoxPull>& made) {
  absl::InlinedVector<const int64_t*, kInlineMembers> counts;
  if (collective.needs_peer_counts()) {
    for (const MemberMemory& member : members) counts.push_back(member.counts);
  }
  TESSERA_ASSIGN_OR_RETURN(const absl::Span<const BoxPull> pulls, collective.pulls(counts, made));
  for (const BoxPull& pull : pulls) {
    TESSERA_RETURN_IF_ERROR(check_source(pull.source, pull.source_box, members));
  }
  return pulls;
}

Status check_terms(const Collective& collective, Members members) {
  const BoxReduction* const reduction = collective.reduction();
  if (reduction == nullptr) return absl::OkStatus();
  for (size_t k = 0; k < members.size(); ++k) {
    const int source = static_cast<int>(k);
    TESSERA_RETURN_IF_ERROR(check_source(source, reduction->held_by(source), members));
  }
  return absl::OkStatus();
}

Status move_bytes(const Collective& collective, Members members) {
  if (collective.reduction() != nullptr) {
    TESSERA_RETURN_IF_ERROR(check_terms(collective, members));
    reduce_own(collective, members);
    return absl::OkStatus();
  }
  std::vector<BoxPull> made;
  TESSERA_ASSIGN_OR_RETURN(const absl::Span<const BoxPull> pulls,
                           checked_pulls(collective, members, made));
  copy_pulls(collective, pulls, members);
  return absl::OkStatus();
}

Status check_part(const Collective& collective, const Label& label, Members members) {
  std::vector<BoxPull> made;
  Status status = checked_pulls(collective, members, made).status();
  status.Update(check_terms(collective, members));
  return status.ok() ? status : with_context(status, label.to_string());
}

}  // namespace tessera
