// SPDX-License-Identifier: Apache-2.0
//
// draw: which devices hold what of a matrix, as a picture for a terminal.
//
//   [batch, -] of [4, 6] on {batch=2, model=2}
//                cols 0:6
//              +-------------+
//   rows 0:2   | devices 0,1 |
//              |             |
//              +-------------+
//   rows 2:4   | devices 2,3 |
//              |             |
//              +-------------+
#ifndef TESSERA_EXAMPLES_PICTURE_H_
#define TESSERA_EXAMPLES_PICTURE_H_

#include <string>

#include "tessera.h"

namespace tessera::examples {

enum class Colour { kNever, kAlways };

// Colour where stdout is a terminal.
Colour colour_of_stdout();

// Requires a layout of rank 2 and a shape that it fits. Ends with a newline.
std::string draw(const Layout& layout, const Shape& shape, Colour colour);

}  // namespace tessera::examples

#endif  // TESSERA_EXAMPLES_PICTURE_H_
