// SPDX-License-Identifier: Apache-2.0
#include "collectives/span/span_sums.h"

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "base/dtype.h"
#include "collectives/span/nested_sums.h"
#include "device/cpu/kernels.h"

namespace tessera::span {

std::vector<const std::byte*> terms_of(const Collective& collective,
                                       absl::Span<const MemberMemory> members,
                                       const std::vector<int>& which, const Box& box) {
  std::vector<const std::byte*> terms;
  for (const int m : which) {
    const int64_t first = box.offsets[0] - collective.reduction()->held_by(m).offsets[0];
    terms.push_back(members[m].in + first * dtype_size(collective.dtype()));
  }
  return terms;
}

void add_terms(const Collective& collective, const Places& places,
               absl::Span<const MemberMemory> members, absl::Span<std::byte* const> fetched,
               absl::Span<std::byte* const> outs) {
  const BoxReduction& reduction = *collective.reduction();
  const Box& box = reduction.box;
  size_t next = 0;
  if (!adds_by_host(collective)) {
    absl::InlinedVector<cpu::ConstBoxView, kInlineMembers> terms;
    for (int m = 0; m < places.num_members(); ++m) {
      if (places.is_here(m)) {
        terms.push_back({members[m].in, reduction.held_by(m)});
      } else {
        terms.push_back({fetched[next++], box});
      }
    }
    return reduce_terms(collective, terms, outs);
  }
  TermsByHost terms;
  for (int h = 0; h < static_cast<int>(places.by_host().size()); ++h) {
    if (h == places.here()) {
      terms.push_back(terms_of(collective, members, places.by_host()[h], box));
    } else {
      terms.push_back({fetched[next++]});
    }
  }
  add_nested(collective.dtype(), collective.op(), terms, outs, box.sizes[0],
             cpu::choose_stores(collective.bytes_written(), cpu::last_level_cache_bytes()));
}

void add_inlined_terms(const Collective& collective, const Places& places,
                       absl::Span<const MemberMemory> members) {
  using Target = BoxReduction::Target;
  const int own = collective.place().position;
  const BoxReduction& reduction = *collective.reduction();
  std::byte* const out = members[own].out;
  const bool gets_none = reduction.target == Target::kRoot && own != collective.root();
  if (out == nullptr || gets_none) return;
  // With Target::kOwn a member adds its own part, with any other target the whole.
  const bool gets_part = reduction.target == Target::kOwn;
  const Box& box = gets_part ? reduction.box : reduction.held;
  if (box.is_empty()) return;
  std::byte* to = out;
  if (gets_part && box.sizes.size() == 1) {
    to += (box.offsets[0] - collective.out_box().offsets[0]) * dtype_size(collective.dtype());
  }
  if (adds_by_host(collective)) {
    TermsByHost terms;
    for (const std::vector<int>& host : places.by_host()) {
      terms.push_back(terms_of(collective, members, host, box));
    }
    return add_nested(collective.dtype(), collective.op(), terms, {&to, 1}, box.sizes[0],
                      cpu::Stores::kCached);
  }
  if (gets_part) {
    absl::InlinedVector<cpu::ConstBoxView, kInlineMembers> terms;
    for (int m = 0; m < places.num_members(); ++m)
      terms.push_back({members[m].in, reduction.held_by(m)});
    return reduce_terms(collective, terms, {&to, 1});
  }
  absl::InlinedVector<const std::byte*, kInlineMembers> terms;
  for (const MemberMemory& member : members) terms.push_back(member.in);
  cpu::reduce(collective.dtype(), collective.op(), terms, {&to, 1}, box.sizes[0]);
}

void copy_sums(const Collective& collective, const Places& places,
               absl::Span<const MemberMemory> members, absl::Span<const Want> wants,
               absl::Span<std::byte* const> fetched) {
  const int64_t element_bytes = dtype_size(collective.dtype());
  const bool is_for_all = collective.reduction()->target == BoxReduction::Target::kAll;
  for (size_t i = 0; i < wants.size(); ++i) {
    const int64_t first = wants[i].box.offsets[0] - collective.out_box().offsets[0];
    for (int m = 0; m < places.num_members(); ++m) {
      if (!places.is_here(m) || (!is_for_all && m != collective.root())) continue;
      cpu::copy_bytes(members[m].out + first * element_bytes, fetched[i],
                      wants[i].box.num_elements() * element_bytes);
    }
  }
}

}  // namespace tessera::span
