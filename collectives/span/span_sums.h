// SPDX-License-Identifier: Apache-2.0
//
// The additions and copies of a member of a group over several hosts, once it has the boxes that it
// lacked. Members are the members of the whole group; the memory of members on other hosts is null
// here.
//
// Pure: memory in, memory out.
#ifndef TESSERA_COLLECTIVES_SPAN_SPAN_SUMS_H_
#define TESSERA_COLLECTIVES_SPAN_SPAN_SUMS_H_

#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "base/shape.h"
#include "collectives/collective.h"
#include "collectives/move.h"
#include "collectives/span/wants.h"

namespace tessera::span {

// Where the terms of these members begin in `box`, of rank 1.
std::vector<const std::byte*> terms_of(const Collective& collective,
                                       absl::Span<const MemberMemory> members,
                                       const std::vector<int>& which, const Box& box);
// Adds the terms of the members here and the fetched terms of members elsewhere, in the order of
// wants_of_inputs().
void add_terms(const Collective& collective, const Places& places,
               absl::Span<const MemberMemory> members, absl::Span<std::byte* const> fetched,
               absl::Span<std::byte* const> outs);
// Adds all terms, which are in the members' entries, for a member that gets the sum.
void add_inlined_terms(const Collective& collective, const Places& places,
                       absl::Span<const MemberMemory> members);
// Copies the sums that were fetched to the members here that get them.
void copy_sums(const Collective& collective, const Places& places,
               absl::Span<const MemberMemory> members, absl::Span<const Want> wants,
               absl::Span<std::byte* const> fetched);

}  // namespace tessera::span

#endif  // TESSERA_COLLECTIVES_SPAN_SPAN_SUMS_H_
