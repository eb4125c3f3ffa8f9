// SPDX-License-Identifier: Apache-2.0
//
// every_layout(): all layouts of a rank on a small mesh, for exhaustive tests; and the digits of
// axes that a layout uses.
#ifndef TESSERA_TESTS_SUPPORT_OPS_EVERY_LAYOUT_H_
#define TESSERA_TESTS_SUPPORT_OPS_EVERY_LAYOUT_H_

#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/status.h"
#include "layout/layout.h"
#include "mesh/mesh.h"

namespace tessera::testing {

// By whole axes and by sub-axes of every way to factor an axis; partial along every set of parts
// that no dim has, by every reduction that the dtype has.
std::vector<Layout> every_layout(const Mesh& mesh, int rank, DType dtype);

// Checks that the result is split only by axes that split an operand, and partial only along axes
// that an operand uses. Axes of a power of 2 are compared by their halves, others as a whole.
Status check_only_split_as(absl::Span<const Layout> operands, const Layout& result);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_OPS_EVERY_LAYOUT_H_
