// SPDX-License-Identifier: Apache-2.0
//
// Dims: which dims of a tensor a function works on.
//
//   ops::sum(x, 0)            one dim
//   ops::sum(x, {0, -1})      a list, here the first and the last; a vector or a span
//   ops::sum(x, kAllDims)     all dims
//   ops::sum(x, {})           no dim
//
// Dims may be negative, from -rank. The function that takes them checks them against the rank.
#ifndef TESSERA_BASE_DIMS_H_
#define TESSERA_BASE_DIMS_H_

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/public.h"

namespace TESSERA_PUBLIC tessera {

struct AllDims {
  explicit constexpr AllDims() = default;  // {} is an empty list of dims
};
inline constexpr AllDims kAllDims;

// A value.
class Dims {
 public:
  Dims(int64_t dim) : list_(std::vector<int64_t>{dim}) {}      // NOLINT: callers write dims
  Dims(std::initializer_list<int64_t> dims) : list_(dims) {}   // NOLINT
  Dims(std::vector<int64_t> dims) : list_(std::move(dims)) {}  // NOLINT
  Dims(absl::Span<const int64_t> dims) : list_(std::vector<int64_t>(dims.begin(), dims.end())) {}
  Dims(AllDims) {}  // NOLINT

  // The dims as they were given; nothing for kAllDims.
  const std::optional<std::vector<int64_t>>& list() const { return list_; }
  // The dims as they were given; 0 to rank - 1 for kAllDims.
  std::vector<int64_t> of_rank(int64_t rank) const;

 private:
  std::optional<std::vector<int64_t>> list_;
};

inline std::vector<int64_t> Dims::of_rank(int64_t rank) const {
  if (list_.has_value()) return *list_;
  std::vector<int64_t> all;
  for (int64_t dim = 0; dim < rank; ++dim) all.push_back(dim);
  return all;
}

}  // namespace tessera

#endif  // TESSERA_BASE_DIMS_H_
