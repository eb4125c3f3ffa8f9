// SPDX-License-Identifier: Apache-2.0
#include "input/running_calls.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera::input::internal {

void RunningCalls::describe(absl::string_view function, std::vector<std::string>* texts) const {
  std::vector<int64_t> elements;
  for (const Place& place : places_) {
    const int64_t element = place.element.load(std::memory_order_relaxed);
    if (element != kNone) elements.push_back(element);
  }
  if (elements.empty()) return;
  std::sort(elements.begin(), elements.end());
  texts->push_back(absl::StrCat(function,
                                elements.size() == 1 ? " is at element " : " is at elements ",
                                absl::StrJoin(elements, ", ")));
}

}  // namespace tessera::input::internal
