// SPDX-License-Identifier: Apache-2.0
#include "input/iterator_state.h"

#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"

namespace tessera::input {
namespace {

// Reads "name=".
Status read_key(TextCursor& cursor, absl::string_view name) {
  TextCursor before = cursor;
  if (cursor.read_name() == name && cursor.consume('=')) return absl::OkStatus();
  return before.expected(absl::StrCat("\"", name, "=\""));
}

// Reads "name=number", not negative.
StatusOr<int64_t> read_count(TextCursor& cursor, absl::string_view name) {
  TESSERA_RETURN_IF_ERROR(read_key(cursor, name));
  TextCursor before = cursor;
  const std::optional<int64_t> number = cursor.read_integer();
  if (!number.has_value() || *number < 0) return before.expected("a number of 63 bits");
  return *number;
}

Status consume(TextCursor& cursor, char c) {
  if (cursor.consume(c)) return absl::OkStatus();
  return cursor.expected(in_quotes(absl::string_view(&c, 1)));
}

}  // namespace

std::string IteratorState::to_string() const {
  return absl::StrCat("{dataset=h", absl::Hex(dataset, absl::kZeroPad16), ", epoch=", epoch,
                      ", step=", step, ", pipelines=[", absl::StrJoin(pipelines, ", "), "]}");
}

StatusOr<IteratorState> IteratorState::parse(absl::string_view text) {
  TextCursor cursor("iterator state", text);
  IteratorState state;
  TESSERA_RETURN_IF_ERROR(consume(cursor, '{'));
  TESSERA_RETURN_IF_ERROR(read_key(cursor, "dataset"));
  TextCursor before = cursor;
  const absl::string_view hash = cursor.read_name();
  if (hash.size() != 17 || hash[0] != 'h' || !absl::SimpleHexAtoi(hash.substr(1), &state.dataset)) {
    return before.expected("\"h\" and 16 hexadecimal digits");
  }
  TESSERA_RETURN_IF_ERROR(consume(cursor, ','));
  TESSERA_ASSIGN_OR_RETURN(state.epoch, read_count(cursor, "epoch"));
  TESSERA_RETURN_IF_ERROR(consume(cursor, ','));
  TESSERA_ASSIGN_OR_RETURN(state.step, read_count(cursor, "step"));
  TESSERA_RETURN_IF_ERROR(consume(cursor, ','));
  TESSERA_RETURN_IF_ERROR(read_key(cursor, "pipelines"));
  TESSERA_RETURN_IF_ERROR(consume(cursor, '['));
  if (!cursor.consume(']')) {
    do {
      before = cursor;
      const std::optional<int64_t> number = cursor.read_integer();
      if (!number.has_value()) return before.expected("a number");
      state.pipelines.push_back(*number);
    } while (cursor.consume(','));
    TESSERA_RETURN_IF_ERROR(consume(cursor, ']'));
  }
  TESSERA_RETURN_IF_ERROR(consume(cursor, '}'));
  if (!cursor.at_end()) return cursor.expected("the end of the text");
  return state;
}

}  // namespace tessera::input
