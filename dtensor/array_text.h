// SPDX-License-Identifier: Apache-2.0
//
// array_text(): an array as numpy.array2string() of numpy 2.4 formats it with its defaults: 8
// digits behind the point, lines of 75 characters, and of more than 1000 elements the first and the
// last 3 along each dim. Internal to dtensor/. Pure.
//
//   shape [8, 300]      shown_shape() [6, 6]      [[0.000e+00 1.000e+00 2.000e+00 ... 2.990e+02]
//                                                  [3.000e+02 ...
#ifndef TESSERA_DTENSOR_ARRAY_TEXT_H_
#define TESSERA_DTENSOR_ARRAY_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"

namespace tessera::internal {

// The shape of the elements that are shown of an array.
Shape shown_shape(const Shape& shape);
// Whether the shown elements are not all elements.
bool is_elided(const Shape& shape);
// Copies the elements of `box` that are shown from an array of that box to an array of
// shown_shape(shape), at their places in it. The other elements of `shown` are left as they are.
void copy_shown(const Shape& shape, const Box& box, int64_t element_size, const std::byte* from,
                std::byte* shown);

// `shown`: the elements that are shown, dense and row-major. Requires validate_dtype(dtype).ok().
std::string array_text(DType dtype, const Shape& shape, const std::byte* shown);
// As above; `values` has all elements.
std::string whole_array_text(DType dtype, const Shape& shape, const std::byte* values);

}  // namespace tessera::internal

#endif  // TESSERA_DTENSOR_ARRAY_TEXT_H_
