// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator/proposals.h"

#include <algorithm>
#include <iterator>

namespace tessera {
namespace {

int64_t bytes_of(const std::string& value) { return static_cast<int64_t>(value.size()); }

// Numbers wrap around.
bool is_later(uint32_t number, uint32_t than) { return static_cast<int32_t>(number - than) > 0; }

}  // namespace

const Proposals::Kept* Proposals::Series::find(uint32_t number) const {
  const auto found =
      std::find_if(kept.begin(), kept.end(), [&](const Kept& one) { return one.number == number; });
  return found == kept.end() ? nullptr : &*found;
}

bool Proposals::Series::has_forgotten(uint32_t number) const {
  return forgotten.has_value() && !is_later(number, *forgotten) && find(number) == nullptr;
}

std::string Proposals::propose(absl::string_view series, uint32_t number, absl::string_view value,
                               bool* is_new) {
  *is_new = false;
  auto known = series_.find(series);
  if (known == series_.end()) {
    if (series_.size() == kMostSeries) return std::string(value);
    known = series_.emplace(std::string(series), Series()).first;
  }
  Series& own = known->second;
  if (const Kept* const first = own.find(number)) return first->value;
  if (own.has_forgotten(number)) return std::string(value);
  *is_new = true;
  if (!own.kept.empty()) earlier_.splice(earlier_.end(), last_, own.kept.back().place);
  last_.push_back(&own);
  own.kept.push_back({number, std::string(value), std::prev(last_.end())});
  num_bytes_ += kBytesOfProposal + bytes_of(own.kept.back().value);
  if (own.kept.size() > kMostOfSeries) forget_oldest(own);
  while (num_bytes_ > kMostBytes && last_.size() + earlier_.size() > 1) {
    forget_oldest(earlier_.empty() ? *last_.front() : *earlier_.front());
  }
  return std::string(value);
}

const std::string* Proposals::find(absl::string_view series, uint32_t number) const {
  const auto known = series_.find(series);
  if (known == series_.end()) return nullptr;
  const Kept* const kept = known->second.find(number);
  return kept == nullptr ? nullptr : &kept->value;
}

bool Proposals::is_forgotten(absl::string_view series, uint32_t number) const {
  const auto known = series_.find(series);
  return known != series_.end() && known->second.has_forgotten(number);
}

// The first place of a series in an order belongs to the oldest of its proposals there.
void Proposals::forget_oldest(Series& series) {
  const Kept& oldest = series.kept.front();
  if (!series.forgotten.has_value() || is_later(oldest.number, *series.forgotten)) {
    series.forgotten = oldest.number;
  }
  num_bytes_ -= kBytesOfProposal + bytes_of(oldest.value);
  (series.kept.size() == 1 ? last_ : earlier_).erase(oldest.place);
  series.kept.pop_front();
}

}  // namespace tessera
