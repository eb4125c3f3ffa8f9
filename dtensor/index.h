// SPDX-License-Identifier: Apache-2.0
//
// Index: an entry of x[{...}], for one dim of a tensor.
//
//   x[{1}]                        row 1: the dim is gone
//   x[{kAll, -1}]                 the last column
//   x[{Range{2, -2}}]             without the first two and the last two rows
//   x[{Range{.step = -1}, 0}]     column 0, in reverse order
//
// An integer is from -rows to rows - 1, where a dim has that many; OutOfRange beyond. A Range is
// NumPy's begin:end:step: limits below 0 count from the end, limits beyond the dim end with it, and
// a step below 0 goes from the end to the beginning. Dims without an entry are whole.
//
// InvalidArgument for more entries than dims and for a step of 0. NumPy: basic indexing, without
// newaxis and the ellipsis.
#ifndef TESSERA_DTENSOR_INDEX_H_
#define TESSERA_DTENSOR_INDEX_H_

#include <concepts>
#include <cstdint>
#include <optional>
#include <variant>

#include "base/public.h"

namespace TESSERA_PUBLIC tessera {

// Elements begin, begin + step, ... before `end`; without a limit from the first or to the last.
struct Range {
  std::optional<int64_t> begin = {};
  std::optional<int64_t> end = {};
  int64_t step = 1;
};

struct All {};
// The whole dim.
inline constexpr All kAll;

// A value.
class Index {
 public:
  template <std::integral T>
  Index(T index) : value_(static_cast<int64_t>(index)) {}  // NOLINT: callers write numbers
  Index(Range range) : value_(range) {}                    // NOLINT
  Index(All) : value_(Range()) {}                          // NOLINT

  const std::variant<int64_t, Range>& value() const { return value_; }

 private:
  std::variant<int64_t, Range> value_;
};

}  // namespace tessera

#endif  // TESSERA_DTENSOR_INDEX_H_
