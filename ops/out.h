// SPDX-License-Identifier: Apache-2.0
//
// Out: the layout that the caller of an operation asks for.
#ifndef TESSERA_OPS_OUT_H_
#define TESSERA_OPS_OUT_H_

#include <concepts>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/public.h"
#include "layout/layout.h"

namespace TESSERA_PUBLIC tessera {
namespace ops {

// The layout of an operation's result: inferred when absent, else exactly this one. Text is read on
// the mesh of the operands: ops::matmul(a, b, "[batch, -]"). The error of a layout that could not
// be made becomes the tensor's.
struct Out {
  Out() = default;
  // From all that is a LayoutArg: a layout, what makes one, or text.
  template <class T>
  requires(std::convertible_to<T, LayoutArg> && !std::is_same_v<std::remove_cvref_t<T>, Out>)
      Out(T&& layout)
      : layout(std::in_place, std::forward<T>(layout)) {}  // NOLINT: implicit

  std::optional<LayoutArg> layout;
};

}  // namespace ops
}  // namespace tessera

#endif  // TESSERA_OPS_OUT_H_
