// SPDX-License-Identifier: Apache-2.0
//
// IdRanges: a set of ids, of clients or of devices, as ranges, so that "all 10,000" is two numbers.
//
//   IdRanges::of({0, 1, 2, 5})   [0-2, 5]
//
// Invariant: ranges are ascending, not empty, and neither overlap nor touch, so that equal sets are
// equal values.
#ifndef TESSERA_JOB_COORDINATOR_ID_RANGES_H_
#define TESSERA_JOB_COORDINATOR_ID_RANGES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace tessera {

class IdRanges {
 public:
  struct Range {
    int begin;
    int end;  // exclusive
    friend auto operator<=>(const Range&, const Range&) = default;
  };

  IdRanges() = default;
  // In any order; ids that are named twice count once.
  static IdRanges of(absl::Span<const int> ids);
  // A list of ids as the ranges of ascending ids in it: {3, 0, 1} is [3, 4) and [0, 2).
  static std::vector<Range> list_of(absl::Span<const int> ids);
  // The ids of ranges that another process sent; empty where they break the invariant.
  static IdRanges of_ranges(absl::Span<const Range> ranges);
  // As of_ranges(), for the numbers of a message: begin, end, begin, end, ...
  static IdRanges of_numbers(absl::Span<const int32_t> numbers);
  std::vector<int32_t> to_numbers() const;

  absl::Span<const Range> ranges() const { return ranges_; }
  bool empty() const { return ranges_.empty(); }
  int64_t size() const;
  bool contains(int id) const;
  // In ascending order.
  template <class Body>
  void for_each(const Body& body) const {
    for (const Range& range : ranges_) {
      for (int id = range.begin; id < range.end; ++id) body(id);
    }
  }
  // "0-2, 5", of many ranges the first ones; and in brackets.
  std::string to_list() const;
  std::string to_string() const;

  friend auto operator<=>(const IdRanges&, const IdRanges&) = default;

 private:
  std::vector<Range> ranges_;
};

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_ID_RANGES_H_
