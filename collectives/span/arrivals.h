// SPDX-License-Identifier: Apache-2.0
//
// The letter that carries the arrivals of members to other hosts: their entries.
//
//   letter:  Head, call, own part | Head, call, own part | ...      one after the other
//   Head:    member, bytes of the call, bytes of the own part
//   call:    signature, texts, error; 0 bytes where it equals the call of the entry before
//   own:     number of elements, counts, input
//
// The entries of members that agree differ only in their own parts, so a barrier of 32 members
// takes 1.2 KiB. A sequence of several letters is a letter too. Pure.
#ifndef TESSERA_COLLECTIVES_SPAN_ARRIVALS_H_
#define TESSERA_COLLECTIVES_SPAN_ARRIVALS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "collectives/signature.h"
#include "collectives/span/boards.h"

namespace tessera::span {

// The arrival of a member. Members of one host have no name here: `member` is a position in the
// group.
struct Arrival {
  int32_t member = 0;
  Signature signature = {};
  int64_t part_count = 0;
  absl::string_view detail;
  absl::string_view label;  // empty: the default_label() of the signature
  Status error;
  int64_t in_count = 0;
  absl::Span<const int64_t> counts;
  absl::Span<const std::byte> inlined;  // the input, or the board of the member's device
};

// The letter with one entry.
std::vector<std::byte> encode_arrival(const Arrival& arrival);
// One letter of several with one entry each.
std::vector<std::byte> join_arrivals(absl::Span<const std::vector<std::byte>> letters);
// Passes all entries to `use`, in their order. False for bytes that the functions above did not
// write; the entries before the mistake have been passed then.
bool read_arrivals(absl::Span<const std::byte> letter,
                   absl::FunctionRef<void(int member, Board::Entry entry)> use);

}  // namespace tessera::span

#endif  // TESSERA_COLLECTIVES_SPAN_ARRIVALS_H_
