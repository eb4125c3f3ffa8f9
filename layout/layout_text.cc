// SPDX-License-Identifier: Apache-2.0
#include "layout/layout_text.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/text.h"

namespace tessera::internal {
namespace {

void append_axis(std::string* out, const AxisText& axis) { absl::StrAppend(out, axis.to_string()); }

std::string dim_to_string(absl::Span<const std::string> axes) {
  if (axes.empty()) return "-";
  if (axes.size() == 1) return axes[0];
  return absl::StrCat("(", absl::StrJoin(axes, ","), ")");
}

std::optional<ReduceOp> reduce_op_of(absl::string_view name) {
  for (int i = 0; i < kNumReduceOps; ++i) {
    const ReduceOp op = static_cast<ReduceOp>(i);
    if (reduce_op_name(op) == name) return op;
  }
  return std::nullopt;
}

StatusOr<AxisText> read_axis(TextCursor& cursor, absl::string_view expected) {
  AxisText axis;
  axis.name = std::string(cursor.read_name());
  if (axis.name.empty()) return cursor.expected(expected);
  if (!cursor.consume(':')) return axis;
  if (!cursor.consume('(')) return cursor.expected("\"(\" of a sub-axis, as in x:(2)2,");
  const std::optional<int64_t> pre = cursor.read_integer();
  if (!pre.has_value()) return cursor.expected("the pre of a sub-axis, as in x:(2)2,");
  if (!cursor.consume(')')) return cursor.expected("\")\" of a sub-axis, as in x:(2)2,");
  const std::optional<int64_t> size = cursor.read_integer();
  if (!size.has_value()) return cursor.expected("the size of a sub-axis, as in x:(2)2,");
  axis.digit = AxisText::Digit{*pre, *size};
  return axis;
}

StatusOr<std::vector<AxisText>> read_dim(TextCursor& cursor) {
  if (cursor.consume('-')) return std::vector<AxisText>();
  std::vector<AxisText> axes;
  if (!cursor.consume('(')) {
    TESSERA_ASSIGN_OR_RETURN(AxisText axis, read_axis(cursor, "an axis, \"-\" or \"(\""));
    axes.push_back(std::move(axis));
    return axes;
  }
  do {
    TESSERA_ASSIGN_OR_RETURN(AxisText axis, read_axis(cursor, "an axis"));
    axes.push_back(std::move(axis));
  } while (cursor.consume(','));
  if (!cursor.next_is(')')) return cursor.expected("\",\" or \")\"");
  if (axes.size() == 1) return cursor.expected("\",\" (one axis is written without parentheses)");
  cursor.consume(')');
  return axes;
}

Status refuse(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("layout ", in_quotes(text), " ", why));
}

// Reads the text after the name of a reduction.
Status read_partial(absl::string_view text, absl::string_view name, TextCursor& cursor,
                    LayoutText& layout) {
  layout.partial_op = reduce_op_of(name);
  if (!layout.partial_op.has_value()) {
    return refuse(text, absl::StrCat("has reduction ", in_quotes(name),
                                     "; a reduction is sum, prod, min, max or avg"));
  }
  if (!cursor.consume('{')) return cursor.expected("\"{\"");
  if (cursor.next_is('}')) {
    return refuse(text, absl::StrCat("has the empty list ", name,
                                     "{}; name the partial axes, or leave the reduction out"));
  }
  do {
    TESSERA_ASSIGN_OR_RETURN(AxisText axis, read_axis(cursor, "an axis"));
    layout.partial.push_back(std::move(axis));
  } while (cursor.consume(','));
  if (!cursor.consume('}')) return cursor.expected("\",\" or \"}\"");
  return absl::OkStatus();
}

}  // namespace

std::string AxisText::to_string() const {
  return digit.has_value() ? absl::StrCat(name, ":(", digit->pre, ")", digit->size) : name;
}

std::string LayoutText::to_string() const {
  std::vector<DimSharding> names(dims.size());
  for (size_t dim = 0; dim < dims.size(); ++dim) {
    for (const AxisText& axis : dims[dim]) names[dim].push_back(axis.to_string());
  }
  std::string text = dims_to_string(names);
  if (partial_op.has_value()) {
    absl::StrAppend(&text, " ", reduce_op_name(*partial_op), "{",
                    absl::StrJoin(partial, ",", append_axis), "}");
  }
  return text;
}

StatusOr<LayoutText> parse_layout_text(absl::string_view text) {
  TextCursor cursor("layout", text);
  LayoutText layout;
  if (!cursor.consume('[')) return cursor.expected("\"[\"");
  if (!cursor.consume(']')) {
    do {
      TESSERA_ASSIGN_OR_RETURN(std::vector<AxisText> dim, read_dim(cursor));
      layout.dims.push_back(std::move(dim));
    } while (cursor.consume(','));
    if (!cursor.consume(']')) return cursor.expected("\",\" or \"]\"");
  }
  while (!cursor.at_end()) {
    const absl::string_view word = cursor.read_name();
    if (word.empty()) return cursor.expected("a reduction or the end");
    if (word == "on") {
      if (cursor.at_end()) return cursor.expected("a mesh");
      layout.mesh = std::string(cursor.rest());
      return layout;
    }
    if (layout.partial_op.has_value()) {
      return refuse(text, absl::StrCat("has a second reduction ", in_quotes(word),
                                       "; a layout has one reduction, over all its partial axes"));
    }
    TESSERA_RETURN_IF_ERROR(read_partial(text, word, cursor, layout));
  }
  return layout;
}

StatusOr<AxisText> parse_axis_text(absl::string_view token) {
  TextCursor cursor("axis", token);
  TESSERA_ASSIGN_OR_RETURN(AxisText axis, read_axis(cursor, "the name of an axis"));
  if (!cursor.at_end()) {
    return cursor.expected("the end (one entry names one axis or sub-axis, as in x:(2)2)");
  }
  return axis;
}

std::string dims_to_string(absl::Span<const DimSharding> dims) {
  return absl::StrCat("[",
                      absl::StrJoin(dims, ", ",
                                    [](std::string* out, const DimSharding& dim) {
                                      absl::StrAppend(out, dim_to_string(dim));
                                    }),
                      "]");
}

}  // namespace tessera::internal
