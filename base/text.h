// SPDX-License-Identifier: Apache-2.0
//
// Text: reading the short notations of Tessera ("{batch=4, model=2}", "[batch, -] sum{model}") and
// the parts that error messages share.
//
//   TextCursor cursor("mesh", "{x=2}");
//   if (!cursor.consume('{')) return cursor.expected("\"{\"");
//     -> mesh "x=2}" has "x" at character 1, where "{" should be
#ifndef TESSERA_BASE_TEXT_H_
#define TESSERA_BASE_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/status.h"

namespace tessera {

// Whether `text` matches [A-Za-z_][A-Za-z0-9_]*, the rule for every name.
bool is_name(absl::string_view text);

// `text` in double quotes, with quotes, backslashes and control characters escaped, for messages. A
// text of more than 200 bytes is cut, and its length is added.
std::string in_quotes(absl::string_view text);
// As in_quotes(), without the cut, for texts that are compared and not shown.
std::string quoted_whole(absl::string_view text);

// The number of bytes before the first that is no UTF-8; text.size() where all are. Overlong forms
// and surrogates are no UTF-8.
size_t utf8_prefix(absl::string_view text);

// The bytes that `hex` has as pairs of hexadecimal digits of either case. Nothing where it has
// another character or half a pair. absl::HexStringToBytes() has one signature in Abseil 20220623
// and another in 20240722 and later.
std::optional<std::string> bytes_of_hex(absl::string_view hex);

// "\"batch\", \"model\"".
std::string quoted_list(absl::Span<const std::string> names);

// The candidate that the user most likely meant by `name`: equal except for case, or with at most
// half of its letters added, left out, changed or swapped with a neighbour. Nothing where no
// candidate is that near.
std::optional<std::string> nearest_name(absl::string_view name,
                                        absl::Span<const std::string> candidates);

// "; did you mean \"model\"", or "" where no candidate is near: the tail of a message.
std::string did_you_mean(absl::string_view name, absl::Span<const std::string> candidates);

// Reads a text from left to right. Every function skips blanks first, and moves only if it finds
// what it reads. Holds a view of the text: the text must outlive the cursor.
class TextCursor {
 public:
  // `subject` names the text in messages: "mesh", "layout".
  TextCursor(absl::string_view subject, absl::string_view text) : subject_(subject), text_(text) {}

  // Whether only blanks are left.
  bool at_end();
  // Whether the next character is `c`.
  bool next_is(char c);
  bool consume(char c);
  // The next name; empty where there is none.
  absl::string_view read_name();
  // The next whole number, with an optional minus. Nothing where there is none or it exceeds 64
  // bits.
  std::optional<int64_t> read_integer();
  // The rest of the text, from the next character that is no blank.
  absl::string_view rest();

  // InvalidArgument, with the text, the characters at this place (counted from 1), and what is
  // expected there.
  Status expected(absl::string_view what);

 private:
  void skip_blanks();

  absl::string_view subject_;
  absl::string_view text_;
  size_t place_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_BASE_TEXT_H_
