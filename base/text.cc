// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera {
namespace {

bool starts_name(char c) { return absl::ascii_isalpha(c) || c == '_'; }
bool continues_name(char c) { return starts_name(c) || absl::ascii_isdigit(c); }

// The least number of insertions, deletions, substitutions and swaps of neighbours that turn `a`
// into `b` (optimal string alignment). Invariant: row i holds the distances of a[0, i) to every
// b[0, j); three rows suffice because a swap looks two back.
size_t edit_distance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

// A character of UTF-8 at the front of a text: its code point and its bytes; 1 byte and no code
// point where the bytes are none.
struct Character {
  std::optional<uint32_t> code = {};
  size_t num_bytes = 1;
};

Character front_character(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  if (byte(0) < 0x80) return {byte(0), 1};
  // The first byte has as many ones before its first zero as the character has bytes.
  const auto size = static_cast<size_t>(std::countl_one(byte(0)));
  if (size < 2 || size > 4 || size > text.size()) return {};
  uint32_t code = byte(0) & (0x7F >> size);
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3F);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xD800 && code < 0xE000;
  if (code < kLeast[size] || code > 0x10FFFF || is_surrogate) return {};
  return {code, size};
}

// Whether a terminal shows the character: no control, no blank but the space, nothing of no width,
// nothing that changes the direction of the text, nothing that has no meaning of its own.
bool is_visible(uint32_t code) {
  constexpr std::pair<uint32_t, uint32_t> kInvisible[] = {
      {0x00, 0x1F},       {0x7F, 0xA0},       {0xAD, 0xAD},     {0x34F, 0x34F},   {0x61C, 0x61C},
      {0x115F, 0x1160},   {0x1680, 0x1680},   {0x17B4, 0x17B5}, {0x180B, 0x180F}, {0x2000, 0x200F},
      {0x2028, 0x202F},   {0x205F, 0x206F},   {0x2800, 0x2800}, {0x3000, 0x3000}, {0x3164, 0x3164},
      {0xE000, 0xF8FF},   {0xFE00, 0xFE0F},   {0xFEFF, 0xFEFF}, {0xFFA0, 0xFFA0}, {0xFFF0, 0xFFFF},
      {0x1D173, 0x1D17A}, {0xE0000, 0x10FFFF}};
  return std::none_of(std::begin(kInvisible), std::end(kInvisible), [code](const auto& range) {
    return code >= range.first && code <= range.second;
  });
}

// Writes quotes, backslashes and bytes that a terminal does not show as escapes: "\n",
// "\xef\xbb\xbf".
std::string escaped(absl::string_view text) {
  std::string result;
  while (!text.empty()) {
    const Character front = front_character(text);
    const absl::string_view bytes = text.substr(0, front.num_bytes);
    text.remove_prefix(front.num_bytes);
    const char c = bytes[0];
    if (c == '"' || c == '\\') {
      absl::StrAppend(&result, "\\", bytes);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      absl::StrAppend(&result, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
    } else if (front.code.has_value() && is_visible(*front.code)) {
      absl::StrAppend(&result, bytes);
    } else {
      for (const char byte : bytes) {
        absl::StrAppend(&result, "\\x", absl::Hex(static_cast<uint8_t>(byte), absl::kZeroPad2));
      }
    }
  }
  return result;
}

}  // namespace

bool is_name(absl::string_view text) {
  return !text.empty() && starts_name(text[0]) &&
         std::all_of(text.begin(), text.end(), continues_name);
}

std::string in_quotes(absl::string_view text) {
  constexpr size_t kMost = 200;
  if (text.size() <= kMost) return quoted_whole(text);
  size_t end = kMost;
  // Not within a character of UTF-8, whose bytes but the first are 10xxxxxx.
  while (end > kMost - 4 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return absl::StrCat("\"", escaped(text.substr(0, end)), "...\" (", text.size(), " bytes)");
}

std::string quoted_whole(absl::string_view text) { return absl::StrCat("\"", escaped(text), "\""); }

size_t utf8_prefix(absl::string_view text) {
  size_t place = 0;
  while (place < text.size()) {
    const Character front = front_character(text.substr(place));
    if (!front.code.has_value()) break;
    place += front.num_bytes;
  }
  return place;
}

std::optional<std::string> bytes_of_hex(absl::string_view hex) {
  if (hex.size() % 2 != 0 || !std::all_of(hex.begin(), hex.end(), [](unsigned char c) {
        return absl::ascii_isxdigit(c);
      })) {
    return std::nullopt;
  }
  const auto digit = [&](size_t i) {
    const char c = absl::ascii_tolower(static_cast<unsigned char>(hex[i]));
    return c <= '9' ? c - '0' : c - 'a' + 10;
  };
  std::string bytes(hex.size() / 2, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(digit(2 * i) << 4 | digit(2 * i + 1));
  }
  return bytes;
}

std::string quoted_list(absl::Span<const std::string> names) {
  return absl::StrJoin(names, ", ", [](std::string* out, const std::string& name) {
    absl::StrAppend(out, in_quotes(name));
  });
}

std::optional<std::string> nearest_name(absl::string_view name,
                                        absl::Span<const std::string> candidates) {
  // A long text is no slip of a name, and the distance costs the product of the lengths.
  constexpr size_t kMaxLength = 64;
  if (name.empty() || name.size() > kMaxLength) return std::nullopt;
  std::optional<std::string> nearest;
  size_t nearest_distance = 0;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > kMaxLength) continue;
    const size_t distance =
        edit_distance(absl::AsciiStrToLower(name), absl::AsciiStrToLower(candidate));
    if (2 * distance > std::max(name.size(), candidate.size())) continue;
    if (!nearest.has_value() || distance < nearest_distance) {
      nearest = candidate;
      nearest_distance = distance;
    }
  }
  return nearest;
}

std::string did_you_mean(absl::string_view name, absl::Span<const std::string> candidates) {
  const std::optional<std::string> nearest = nearest_name(name, candidates);
  return nearest.has_value() ? absl::StrCat("; did you mean ", in_quotes(*nearest)) : "";
}

bool TextCursor::at_end() {
  skip_blanks();
  return place_ == text_.size();
}

bool TextCursor::next_is(char c) { return !at_end() && text_[place_] == c; }

bool TextCursor::consume(char c) {
  if (!next_is(c)) return false;
  ++place_;
  return true;
}

absl::string_view TextCursor::read_name() {
  skip_blanks();
  size_t end = place_;
  if (end < text_.size() && starts_name(text_[end])) {
    while (end < text_.size() && continues_name(text_[end])) ++end;
  }
  const absl::string_view name = text_.substr(place_, end - place_);
  place_ = end;
  return name;
}

std::optional<int64_t> TextCursor::read_integer() {
  skip_blanks();
  size_t end = place_;
  if (end < text_.size() && text_[end] == '-') ++end;
  while (end < text_.size() && absl::ascii_isdigit(text_[end])) ++end;
  int64_t value = 0;
  if (!absl::SimpleAtoi(text_.substr(place_, end - place_), &value)) return std::nullopt;
  place_ = end;
  return value;
}

absl::string_view TextCursor::rest() {
  skip_blanks();
  return text_.substr(place_);
}

Status TextCursor::expected(absl::string_view what) {
  if (at_end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(subject_, " ", in_quotes(text_), " ends where ", what, " should follow"));
  }
  // A name or a number is shown whole: one letter of it says little.
  size_t end = place_ + 1;
  if (continues_name(text_[place_]) ||
      (text_[place_] == '-' && end < text_.size() && absl::ascii_isdigit(text_[end]))) {
    while (end < text_.size() && continues_name(text_[end])) ++end;
  }
  const absl::string_view found = text_.substr(place_, end - place_);
  int64_t number = 0;
  const absl::string_view digits = found[0] == '-' ? found.substr(1) : found;
  const bool too_large = !digits.empty() &&
                         std::all_of(digits.begin(), digits.end(),
                                     [](unsigned char c) { return absl::ascii_isdigit(c); }) &&
                         !absl::SimpleAtoi(found, &number);
  return absl::InvalidArgumentError(
      absl::StrCat(subject_, " ", in_quotes(text_), " has ", in_quotes(found), " at character ",
                   place_ + 1, ", where ", what, " should be",
                   too_large ? "; the number is too large for 64 bits, use a smaller one" : ""));
}

void TextCursor::skip_blanks() {
  while (place_ < text_.size() && absl::ascii_isspace(text_[place_])) ++place_;
}

}  // namespace tessera
