// SPDX-License-Identifier: Apache-2.0
//
// How batches are split over replicas: the rows of tests/facts/input.md, for whatever splits them.
#ifndef TESSERA_TESTS_SUPPORT_DISTRIBUTE_SPLITS_H_
#define TESSERA_TESTS_SUPPORT_DISTRIBUTE_SPLITS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "input/dataset.h"

namespace tessera::testing {

// range(size) in batches.
struct SplitCase {
  const char* name;
  int64_t size;
  int64_t batch;
  const char* steps;  // "0 1 / 2 3; 4 5 / 6": steps, each by replica
  int num_replicas;
  input::Remainder remainder = input::Remainder::kKeep;
};
inline constexpr SplitCase kSplits[] = {
    {"split_7_by_4_over_2", 7, 4, "0 1 / 2 3; 4 5 / 6", 2},
    {"split_7_by_4_over_2_drop", 7, 4, "0 1 / 2 3", 2, input::Remainder::kDrop},
    {"split_8_by_4_over_2", 8, 4, "0 1 / 2 3; 4 5 / 6 7", 2},
    {"split_8_by_4_over_2_drop", 8, 4, "0 1 / 2 3; 4 5 / 6 7", 2, input::Remainder::kDrop},
    {"split_10_by_4_over_2", 10, 4, "0 1 / 2 3; 4 5 / 6 7; 8 / 9", 2},
    {"split_10_by_4_over_2_drop", 10, 4, "0 1 / 2 3; 4 5 / 6 7", 2, input::Remainder::kDrop},
    {"split_7_by_4_over_3", 7, 4, "0 1 / 2 / 3; 4 / 5 / 6", 3},
    {"split_7_by_4_over_3_drop", 7, 4, "0 1 / 2 / 3", 3, input::Remainder::kDrop},
    {"split_8_by_4_over_3", 8, 4, "0 1 / 2 / 3; 4 5 / 6 / 7", 3},
    {"split_8_by_4_over_3_drop", 8, 4, "0 1 / 2 / 3; 4 5 / 6 / 7", 3, input::Remainder::kDrop},
    {"split_10_by_4_over_3", 10, 4, "0 1 / 2 / 3; 4 5 / 6 / 7; 8 / 9 / -", 3},
    {"split_10_by_4_over_3_drop", 10, 4, "0 1 / 2 / 3; 4 5 / 6 / 7", 3, input::Remainder::kDrop},
    {"split_7_by_4_over_4", 7, 4, "0 / 1 / 2 / 3; 4 / 5 / 6 / -", 4},
    {"split_7_by_4_over_4_drop", 7, 4, "0 / 1 / 2 / 3", 4, input::Remainder::kDrop},
    {"split_8_by_4_over_4", 8, 4, "0 / 1 / 2 / 3; 4 / 5 / 6 / 7", 4},
    {"split_8_by_4_over_4_drop", 8, 4, "0 / 1 / 2 / 3; 4 / 5 / 6 / 7", 4, input::Remainder::kDrop},
    {"split_10_by_4_over_4", 10, 4, "0 / 1 / 2 / 3; 4 / 5 / 6 / 7; 8 / - / 9 / -", 4},
    {"split_10_by_4_over_4_drop", 10, 4, "0 / 1 / 2 / 3; 4 / 5 / 6 / 7", 4,
     input::Remainder::kDrop},
    {"split_10_by_6_over_2", 10, 6, "0 1 2 / 3 4 5; 6 7 / 8 9", 2},
    {"split_10_by_6_over_3", 10, 6, "0 1 / 2 3 / 4 5; 6 7 / 8 / 9", 3},
    {"split_10_by_6_over_4", 10, 6, "0 1 / 2 / 3 4 / 5; 6 / 7 / 8 / 9", 4},
    {"split_7_by_5_over_3", 7, 5, "0 1 / 2 3 / 4; 5 / 6 / -", 3},
    {"split_10_by_8_over_3", 10, 8, "0 1 2 / 3 4 5 / 6 7; 8 / 9 / -", 3},
    {"split_7_by_6_over_4_drop", 7, 6, "0 1 / 2 / 3 4 / 5", 4, input::Remainder::kDrop},
    {"split_8_by_3_over_4", 8, 3, "0 / 1 / 2 / -; 3 / 4 / 5 / -; 6 / - / 7 / -", 4},
    {"split_7_by_3_over_2", 7, 3, "0 1 / 2; 3 4 / 5; 6 / -", 2},
    {"clients_2x1_range_7", 7, 4, "0 1 / 2 3; 4 5 / 6", 2},
    {"clients_2x1_range_10", 10, 4, "0 1 / 2 3; 4 5 / 6 7; 8 / 9", 2},
    {"clients_3x1_range_8", 8, 4, "0 1 / 2 / 3; 4 5 / 6 / 7", 3},
    {"clients_3x1_range_10", 10, 4, "0 1 / 2 / 3; 4 5 / 6 / 7; 8 / 9 / -", 3},
    {"fewer_elements_than_clients", 1, 1, "0 / -", 2},
    {"empty_dataset", 0, 2, "", 2},
};

// "0 1 / 2 3; 4 5 / 6" by step and replica.
inline std::vector<std::vector<std::string>> parse_steps(absl::string_view text) {
  std::vector<std::vector<std::string>> steps;
  for (const absl::string_view step : absl::StrSplit(text, "; ", absl::SkipEmpty())) {
    steps.push_back(absl::StrSplit(step, " / "));
  }
  return steps;
}
inline std::string text_of(absl::Span<const int64_t> elements) {
  return elements.empty() ? "-" : absl::StrJoin(elements, " ");
}

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_DISTRIBUTE_SPLITS_H_
