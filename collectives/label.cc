// SPDX-License-Identifier: Apache-2.0
#include "collectives/label.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/kept_allocator.h"

namespace tessera {

Label::Label(SharedText name, uint64_t number, SharedText text, SharedText where) {
  if (name.empty()) return;
  parts_ = std::allocate_shared<const Parts>(
      KeptAllocator<Parts>(), Parts{std::move(name), number, std::move(text), std::move(where)});
}

std::string Label::to_string() const {
  if (empty()) return "";
  std::string result(parts_->name.view());
  if (parts_->number != 0) absl::StrAppend(&result, " #", parts_->number);
  if (!parts_->text.empty()) absl::StrAppend(&result, " ", parts_->text.view());
  if (!parts_->where.empty()) absl::StrAppend(&result, " ", parts_->where.view());
  return result;
}

size_t Label::copy_to(absl::Span<char> to) const {
  size_t length = 0;
  const auto add = [&](absl::string_view part) {
    length += part.copy(to.data() + length, to.size() - 1 - length);
  };
  if (!empty()) {
    add(parts_->name);
    if (parts_->number != 0) {
      add(" #");
      add(absl::AlphaNum(parts_->number).Piece());
    }
    for (const SharedText* part : {&parts_->text, &parts_->where}) {
      if (part->empty()) continue;
      add(" ");
      add(*part);
    }
  }
  to[length] = '\0';
  return length;
}

}  // namespace tessera
