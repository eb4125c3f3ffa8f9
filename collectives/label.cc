// SPDX-License-Identifier: Apache-2.0
#include "collectives/label.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tessera {

size_t copy_cut(absl::Span<char> to, absl::string_view text) {
  constexpr absl::string_view kCut = "...";
  const size_t num_bytes = std::min(text.size(), to.size() - 1);
  text.copy(to.data(), num_bytes);
  to[num_bytes] = '\0';
  if (num_bytes == text.size() || num_bytes < kCut.size()) return num_bytes;
  const size_t tail = (num_bytes - kCut.size()) / 2;
  char* const end = to.data() + num_bytes;
  kCut.copy(end - tail - kCut.size(), kCut.size());
  text.copy(end - tail, tail, text.size() - tail);
  return num_bytes;
}

Label::Label(SharedText name, uint64_t number, SharedText text, SharedText where) {
  if (name.empty()) return;
  parts_ = std::make_shared<const Parts>(
      Parts{std::move(name), number, std::move(text), std::move(where)});
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
  bool is_cut = false;
  const auto add = [&](absl::string_view part) {
    const size_t num_copied = part.copy(to.data() + length, to.size() - 1 - length);
    is_cut |= num_copied < part.size();
    length += num_copied;
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
  if (is_cut) return copy_cut(to, to_string());
  to[length] = '\0';
  return length;
}

}  // namespace tessera
