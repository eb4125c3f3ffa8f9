// SPDX-License-Identifier: Apache-2.0
//
// ClientRanges: a set of clients as ranges of ids, so that "all 10,000" is two numbers.
//
//   ClientRanges::of({0, 1, 2, 5})   [0-2, 5]
//
// Invariant: ranges are ascending, not empty, and neither overlap nor touch, so that equal sets are
// equal values.
#ifndef TESSERA_JOB_COORDINATOR_CLIENT_RANGES_H_
#define TESSERA_JOB_COORDINATOR_CLIENT_RANGES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace tessera {

class ClientRanges {
 public:
  struct Range {
    int begin;
    int end;  // exclusive
    friend auto operator<=>(const Range&, const Range&) = default;
  };

  ClientRanges() = default;
  // In any order; ids that are named twice count once.
  static ClientRanges of(absl::Span<const int> clients);
  // The clients of ranges that another process sent; empty where they break the invariant.
  static ClientRanges of_ranges(absl::Span<const Range> ranges);
  // As of_ranges(), for the numbers of a message: begin, end, begin, end, ...
  static ClientRanges of_numbers(absl::Span<const int32_t> numbers);
  std::vector<int32_t> to_numbers() const;

  absl::Span<const Range> ranges() const { return ranges_; }
  bool empty() const { return ranges_.empty(); }
  int64_t size() const;
  bool contains(int client) const;
  // In ascending order.
  template <class Body>
  void for_each(const Body& body) const {
    for (const Range& range : ranges_) {
      for (int client = range.begin; client < range.end; ++client) body(client);
    }
  }
  // "0-2, 5", of many ranges the first ones; and in brackets.
  std::string to_list() const;
  std::string to_string() const;

  friend auto operator<=>(const ClientRanges&, const ClientRanges&) = default;

 private:
  std::vector<Range> ranges_;
};

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_CLIENT_RANGES_H_
