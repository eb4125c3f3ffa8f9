// SPDX-License-Identifier: Apache-2.0
//
// Reading digits.csv, with errors that name line and column.
#include "examples/digits_csv.h"

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "examples/data_file.h"

namespace tessera::examples {
namespace {

constexpr size_t kMaxQuotedBytes = 20;

// One field of a line, and its position.
struct Field {
  absl::string_view text;
  int64_t column;  // from 1
  int64_t number;  // from 1
};

// "x.csv", line 3, column 7: ...
Status error_at(absl::string_view name, int64_t line, int64_t column, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", name, "\", line ", line, ", column ", column, ": ", what));
}

// The file may be anything, such as a program: bytes that are not text are shown as hexadecimal
// digits.
std::string in_quotes(absl::string_view text) {
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, kMaxQuotedBytes)),
                      text.size() > kMaxQuotedBytes ? "...\"" : "\"");
}

StatusOr<uint8_t> parse_field(const Field& field, absl::string_view name, int64_t line) {
  const bool is_label = field.number > kNumPixels;
  const int max = is_label ? static_cast<int>(kNumDigits) - 1 : kMaxPixel;
  int value = 0;
  if (!absl::SimpleAtoi(field.text, &value) || value < 0 || value > max) {
    return error_at(name, line, field.column,
                    absl::StrCat("field ", field.number, " is ", in_quotes(field.text), "; ",
                                 is_label ? "the digit is a whole number from 0 to "
                                          : "a pixel is a whole number from 0 to ",
                                 max));
  }
  return static_cast<uint8_t>(value);
}

Status parse_line(absl::string_view text, absl::string_view name, int64_t line, Digits& digits) {
  size_t begin = 0;
  for (int64_t number = 1;; ++number) {
    const int64_t column = static_cast<int64_t>(begin) + 1;
    if (number > kNumPixels + 1) {
      return error_at(name, line, column,
                      absl::StrCat("more than ", kNumPixels + 1, " fields; a line is ", kNumPixels,
                                   " pixels and the digit"));
    }
    const size_t comma = text.find(',', begin);
    const size_t end = comma == absl::string_view::npos ? text.size() : comma;
    TESSERA_ASSIGN_OR_RETURN(
        uint8_t value, parse_field({text.substr(begin, end - begin), column, number}, name, line));
    (number > kNumPixels ? digits.labels : digits.pixels).push_back(value);
    if (comma == absl::string_view::npos) {
      if (number == kNumPixels + 1) return absl::OkStatus();
      return error_at(
          name, line, static_cast<int64_t>(text.size()) + 1,
          absl::StrCat("the line ends after ", number, number == 1 ? " field" : " fields",
                       "; a line is ", kNumPixels, " pixels and the digit"));
    }
    begin = comma + 1;
  }
}

}  // namespace

StatusOr<Digits> parse_digits(absl::string_view text, absl::string_view name) {
  if (text.empty()) {
    return error_at(name, 1, 1, "the file is empty; expected one image per line");
  }
  Digits digits;
  int64_t line = 0;
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    absl::string_view content = text.substr(0, newline);
    text.remove_prefix(newline == absl::string_view::npos ? text.size() : newline + 1);
    if (!content.empty() && content.back() == '\r') content.remove_suffix(1);
    TESSERA_RETURN_IF_ERROR(parse_line(content, name, ++line, digits));
  }
  return digits;
}

StatusOr<Digits> read_digits(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const std::string text, read_data(path, "digits.csv"));
  return parse_digits(text, path);
}

}  // namespace tessera::examples
