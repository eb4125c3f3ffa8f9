// SPDX-License-Identifier: Apache-2.0
//
// Writers: which device writes which box of a tensor, so that each element is written once, and the
// devices that hold replicas share the work.
//
//   [64, 4] under [x, -] on {x=2, y=2}, h even     h odd
//     position 0  x=0 y=0   rows  0 to 15            rows 16 to 31
//              1  x=0 y=1   rows 16 to 31            rows  0 to 15
//              2  x=1 y=0   rows 32 to 47            rows 48 to 63
//              3  x=1 y=1   rows 48 to 63            rows 32 to 47
//
// The rule. Let a box be held by r devices, in the order of their positions, and let h be XXH3-64
// of the name of the tensor.
// - A scalar, a box of at most min_split_bytes, and a box with r = 1 are written whole by holder
//   h mod r.
// - Any other box is cut along one dim c into r shares by the split rule: share j of m indices is
//   [ceil(j*m/r), ceil((j+1)*m/r)). Holder (j + h) mod r writes share j.
// - c is the outermost dim of at least 16 r indices; where there is none, the dim of which the
//   largest share is the smallest part, the outermost of equals.
//
// So a device writes at most one box of a tensor, which is in its own shard; it finds that box
// without its peers; and names spread what is left over. Partial axes count as replicated: a
// partial tensor is reduced before it is saved.
//
// Pure; safe to call from any thread. Internal to checkpoint/.
#ifndef TESSERA_CHECKPOINT_WRITERS_H_
#define TESSERA_CHECKPOINT_WRITERS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "layout/layout.h"

namespace tessera::checkpoint::internal {

struct WrittenBox {
  int64_t position;  // In the mesh of the layout.
  int device;        // At that position.
  Box box;

  friend bool operator==(const WrittenBox& a, const WrittenBox& b) = default;
};

// The boxes that all devices write, ascending by position. Devices that write nothing are left out.
// InvalidArgument for a shape that is not legal for the layout or the dtype, and for a negative
// `min_split_bytes`. O(devices).
StatusOr<std::vector<WrittenBox>> written_boxes(const Layout& layout, const Shape& shape,
                                                DType dtype, absl::string_view name,
                                                int64_t min_split_bytes);

// The box that the device at `position` writes; nothing where it writes none. Requires arguments
// that written_boxes() accepts. O(rank).
std::optional<Box> written_box(const Layout& layout, const Shape& shape, DType dtype,
                               absl::string_view name, int64_t min_split_bytes, int64_t position);

}  // namespace tessera::checkpoint::internal

#endif  // TESSERA_CHECKPOINT_WRITERS_H_
