// SPDX-License-Identifier: Apache-2.0
//
// LayoutText: a layout as it was written, before it is checked against a mesh. Only the notation
// is known to be right: names may be unknown, parts may overlap, sizes may not divide.
//
//   "[(b,a:(1)2), -] sum{c}"  ->  dims {{b, a:(1)2}, {}}, partial_op kSum, partial {c}
#ifndef TESSERA_LAYOUT_LAYOUT_TEXT_H_
#define TESSERA_LAYOUT_LAYOUT_TEXT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/reduce_op.h"
#include "base/status.h"
#include "layout/sub_axis.h"

namespace tessera::internal {

// "x" or, with `digit`, "x:(pre)size".
struct AxisText {
  struct Digit {
    int64_t pre;
    int64_t size;
  };
  std::string name;
  std::optional<Digit> digit;

  std::string to_string() const;
};

struct LayoutText {
  std::vector<std::vector<AxisText>> dims;
  std::optional<ReduceOp> partial_op;  // Set exactly where there is a reduction.
  std::vector<AxisText> partial;
  // The text after " on", which names a mesh; empty where there was none.
  std::string mesh;

  // "[batch, -] sum{model}", without the mesh.
  std::string to_string() const;
};

// InvalidArgument with the place where the text leaves the grammar of layout.h. The text after "on"
// is stored without being parsed.
StatusOr<LayoutText> parse_layout_text(absl::string_view text);

// One axis or sub-axis, all of `token`.
StatusOr<AxisText> parse_axis_text(absl::string_view token);

// "[batch, (x,y), -]" from dims as a program gives them, valid or not: for messages.
std::string dims_to_string(absl::Span<const DimSharding> dims);

}  // namespace tessera::internal

#endif  // TESSERA_LAYOUT_LAYOUT_TEXT_H_
