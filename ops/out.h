// SPDX-License-Identifier: Apache-2.0
//
// Out: the layout that the caller of an operation asks for.
#ifndef TESSERA_OPS_OUT_H_
#define TESSERA_OPS_OUT_H_

#include <optional>
#include <utility>

#include "base/status.h"
#include "layout/layout.h"

namespace tessera::ops {

// The layout of an operation's result: inferred when absent, else exactly this one. The
// error of a layout that could not be made becomes the tensor's.
struct Out {
  Out() = default;
  Out(Layout layout) : layout(std::move(layout)) {}            // NOLINT: callers pass a layout
  Out(StatusOr<Layout> layout) : layout(std::move(layout)) {}  // NOLINT: or what makes one

  std::optional<StatusOr<Layout>> layout;
};

}  // namespace tessera::ops

#endif  // TESSERA_OPS_OUT_H_
