// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints for tests, as the writers of a layout would make them, and the tables of
// checkpoint/testdata.
#ifndef TESSERA_CHECKPOINT_TESTING_SAVED_H_
#define TESSERA_CHECKPOINT_TESTING_SAVED_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "checkpoint/info.h"
#include "layout/layout.h"

namespace tessera::checkpoint::testing {

// Where the data of each file of saved_info() begins.
inline constexpr int64_t kDataBegin = 4096;

// A checkpoint of one tensor: a file for each device that writes, ascending by device id. A file is
// called by the device, "3", and holds its box at kDataBegin.
StatusOr<Info> saved_info(const Layout& layout, const Shape& shape, DType dtype,
                          absl::string_view name, int64_t min_split_bytes);

// "0 [0:2, 0:6]; 3 [2:4, 0:6]", or "no file": the files of saved_info() with their boxes.
std::string boxes_text(const Info& info);

// The bytes of the box where element number i of the tensor (row-major) has the bytes
// (i * element_bytes + 0, ...) mod 251. Loops only.
std::string bytes_of_box(const Shape& shape, const Box& box, int64_t element_bytes);

// The rows of a table in checkpoint/testdata, found from the working directory of a test, without
// the row of names. NotFound where the file is not there; InvalidArgument names a row that has not
// `num_cells` cells.
StatusOr<std::vector<std::vector<std::string>>> read_table(absl::string_view file,
                                                           size_t num_cells);

// "[8, 6]", "{x=2} on 5,7" with "[x, -]", and "f32", as tables write them.
StatusOr<Shape> parse_shape(absl::string_view text);
StatusOr<Layout> parse_layout(absl::string_view mesh, absl::string_view layout);
StatusOr<DType> parse_dtype(absl::string_view text);

}  // namespace tessera::checkpoint::testing

#endif  // TESSERA_CHECKPOINT_TESTING_SAVED_H_
