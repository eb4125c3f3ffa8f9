// SPDX-License-Identifier: Apache-2.0
#include "collectives/label.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tessera {

std::string Label::to_string() const {
  std::string result(name_.view());
  if (number_ != 0) absl::StrAppend(&result, " #", number_);
  if (!text_.empty()) absl::StrAppend(&result, " ", text_.view());
  if (!where_.empty()) absl::StrAppend(&result, " ", where_.view());
  return result;
}

size_t Label::copy_to(absl::Span<char> to) const {
  size_t length = 0;
  const auto add = [&](absl::string_view part) {
    length += part.copy(to.data() + length, to.size() - 1 - length);
  };
  add(name_);
  if (number_ != 0) {
    add(" #");
    add(absl::AlphaNum(number_).Piece());
  }
  for (const SharedText* part : {&text_, &where_}) {
    if (part->empty()) continue;
    add(" ");
    add(*part);
  }
  to[length] = '\0';
  return length;
}

}  // namespace tessera
