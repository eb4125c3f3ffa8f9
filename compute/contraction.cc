// SPDX-License-Identifier: Apache-2.0
#include "compute/contraction.h"

#include <algorithm>

namespace tessera::kernels {
namespace {

bool has(const Labels& labels, int label) {
  return std::find(labels.begin(), labels.end(), label) != labels.end();
}

}  // namespace

ContractionLabels ContractionLabels::create(const Labelled& a, const Labelled& b,
                                            const Labels& result) {
  ContractionLabels labels;
  for (const int label : result) {
    const bool in_a = has(a.labels, label);
    const bool in_b = has(b.labels, label);
    (in_a && in_b ? labels.batch : in_a ? labels.rows : labels.columns).push_back(label);
  }
  for (const int label : a.labels) {
    if (label >= 0 && !has(result, label)) labels.summed.push_back(label);
  }
  return labels;
}

Labels joined(const Labels& first, const Labels& second, const Labels& third) {
  Labels all = first;
  all.insert(all.end(), second.begin(), second.end());
  all.insert(all.end(), third.begin(), third.end());
  return all;
}

absl::InlinedVector<int64_t, 8> by_label(const Labels& labels, absl::Span<const int64_t> values,
                                         const Labels& order) {
  absl::InlinedVector<int64_t, 8> result;
  for (const int label : order) {
    result.push_back(values[std::find(labels.begin(), labels.end(), label) - labels.begin()]);
  }
  return result;
}

}  // namespace tessera::kernels
