// SPDX-License-Identifier: Apache-2.0
#include "collectives/counts.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/stable_hash.h"

namespace tessera {
Counts Counts::of(absl::Span<const int64_t> counts) {
  const auto size = static_cast<int>(counts.size());
  if (counts.empty()) return Counts();
  const auto differs = [&](int64_t count) { return count != counts[0]; };
  if (std::none_of(counts.begin(), counts.end(), differs)) return equal(size, counts[0]);
  Counts listed;
  listed.size_ = size;
  listed.list_ = std::make_shared<const std::vector<int64_t>>(counts.begin(), counts.end());
  return listed;
}

std::optional<int64_t> Counts::checked_sum() const {
  int64_t sum = 0;
  if (list_ == nullptr) {
    if (each_ < 0 || __builtin_mul_overflow(each_, size_, &sum)) return std::nullopt;
    return sum;
  }
  for (const int64_t count : *list_) {
    if (count < 0 || __builtin_add_overflow(sum, count, &sum)) return std::nullopt;
  }
  return sum;
}

int64_t Counts::sum_before(int member) const {
  if (list_ == nullptr) return each_ * member;
  return std::accumulate(list_->begin(), list_->begin() + member, int64_t{0});
}

std::string Counts::to_string() const {
  if (list_ != nullptr) return absl::StrJoin(*list_, ", ");
  std::string text;
  for (int member = 0; member < size_; ++member) {
    absl::StrAppend(&text, member == 0 ? "" : ", ", each_);
  }
  return text;
}

uint64_t Counts::hash() const {
  if (list_ != nullptr) return stable_hash(absl::MakeConstSpan(*list_));
  const int64_t words[] = {size_, each_};
  // A seed that differs from the seed of a list of two counts.
  return stable_hash(absl::MakeConstSpan(words), /*seed=*/1);
}

bool operator==(const Counts& a, const Counts& b) {
  if (a.list_ != nullptr && b.list_ != nullptr) return a.list_ == b.list_ || *a.list_ == *b.list_;
  return a.list_ == b.list_ && a.size_ == b.size_ && a.each_ == b.each_;
}

}  // namespace tessera
