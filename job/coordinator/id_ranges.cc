// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator/id_ranges.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tessera {

IdRanges IdRanges::of(absl::Span<const int> ids) {
  std::vector<int> sorted(ids.begin(), ids.end());
  std::sort(sorted.begin(), sorted.end());
  IdRanges result;
  for (const int id : sorted) {
    if (!result.ranges_.empty() && id < result.ranges_.back().end) continue;
    if (!result.ranges_.empty() && id == result.ranges_.back().end) {
      ++result.ranges_.back().end;
    } else {
      result.ranges_.push_back({id, id + 1});
    }
  }
  return result;
}

std::vector<IdRanges::Range> IdRanges::list_of(absl::Span<const int> ids) {
  std::vector<Range> ranges;
  for (const int id : ids) {
    if (ranges.empty() || id != ranges.back().end) ranges.push_back({id, id});
    ++ranges.back().end;
  }
  return ranges;
}

IdRanges IdRanges::of_ranges(absl::Span<const Range> ranges) {
  int after = -1;  // the first id that the next range may begin behind
  for (const Range& range : ranges) {
    if (range.begin <= after || range.end <= range.begin) return {};
    after = range.end;
  }
  IdRanges result;
  result.ranges_.assign(ranges.begin(), ranges.end());
  return result;
}

IdRanges IdRanges::of_numbers(absl::Span<const int32_t> numbers) {
  std::vector<Range> ranges;
  for (size_t i = 0; i + 1 < numbers.size(); i += 2) {
    ranges.push_back({numbers[i], numbers[i + 1]});
  }
  return of_ranges(ranges);
}

std::vector<int32_t> IdRanges::to_numbers() const {
  std::vector<int32_t> numbers;
  for (const Range& range : ranges_) numbers.insert(numbers.end(), {range.begin, range.end});
  return numbers;
}

int64_t IdRanges::size() const {
  int64_t size = 0;
  for (const Range& range : ranges_) size += range.end - range.begin;
  return size;
}

bool IdRanges::contains(int id) const {
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), id,
                                      [](int at, const Range& range) { return at < range.begin; });
  return after != ranges_.begin() && id < (after - 1)->end;
}

std::string IdRanges::to_list() const {
  constexpr size_t kMostNamed = 8;
  std::string text;
  for (size_t i = 0; i < ranges_.size() && i < kMostNamed; ++i) {
    const auto& [begin, end] = ranges_[i];
    absl::StrAppend(&text, i == 0 ? "" : ", ", begin);
    if (end - begin == 2) absl::StrAppend(&text, ", ", begin + 1);
    if (end - begin > 2) absl::StrAppend(&text, "-", end - 1);
  }
  return absl::StrCat(text, ranges_.size() > kMostNamed ? ", ..." : "");
}

std::string IdRanges::to_string() const { return absl::StrCat("[", to_list(), "]"); }

}  // namespace tessera
