// SPDX-License-Identifier: Apache-2.0
//
// Counts: how many elements each member of a group has.
//
//   Counts::equal(4, 8)           8 of each of 4 members: no memory
//   Counts::of({3, 5, 0, 2})      a list, which copies share
//   Counts::of({8, 8, 8, 8})      is Counts::equal(4, 8): there is one form of each value
//
// Parts are nearly always equal, and an operation of a few bytes has no time to allocate as many
// equal numbers as there are members. Values are not checked here; Collective::make() checks them.
// Immutable except by assignment; thread-safe, as a shared_ptr is.
#ifndef TESSERA_COLLECTIVES_COUNTS_H_
#define TESSERA_COLLECTIVES_COUNTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace tessera {

class Counts {
 public:
  // Counts of no members.
  Counts() = default;
  static Counts equal(int num_members, int64_t each);
  static Counts of(absl::Span<const int64_t> counts);

  int size() const { return size_; }
  int64_t operator[](int member) const { return list_ == nullptr ? each_ : (*list_)[member]; }
  // True if all members have the same number, or there are no members.
  bool are_equal() const { return list_ == nullptr; }

  // The sum of all members' counts; nothing where a count is negative or a 64-bit integer cannot
  // hold the sum.
  std::optional<int64_t> checked_sum() const;
  // The sums over all members, and over those before `member`. Require that checked_sum() has a
  // value.
  int64_t sum() const { return sum_before(size_); }
  int64_t sum_before(int member) const;

  // "3, 5, 0, 2".
  std::string to_string() const;
  // Equal in every process. Unequal counts have equal hashes only by chance.
  uint64_t hash() const;

  friend bool operator==(const Counts& a, const Counts& b);

 private:
  int size_ = 0;
  int64_t each_ = 0;                                  // where list_ is null
  std::shared_ptr<const std::vector<int64_t>> list_;  // null: equal
};

inline Counts Counts::equal(int num_members, int64_t each) {
  Counts counts;
  counts.size_ = num_members;
  counts.each_ = num_members == 0 ? 0 : each;
  return counts;
}

}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_COUNTS_H_
