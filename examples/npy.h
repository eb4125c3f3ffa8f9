// SPDX-License-Identifier: Apache-2.0
//
// write_npy: one array as a .npy file (version 1.0), which numpy.load reads.
//
//   "\x93NUMPY" 1 0 | header length, u16 | {'descr': '<f4', ...} padded, '\n' | elements
//
// The elements begin at a multiple of 64 bytes, row-major and little-endian. Format:
// numpy.lib.format of the NumPy manual.
#ifndef TESSERA_EXAMPLES_NPY_H_
#define TESSERA_EXAMPLES_NPY_H_

#include <string>

#include "tessera.h"

namespace tessera::examples {

// The bytes before the elements. Requires shape.size() <= 32, numpy's own limit.
std::string npy_header(const Shape& shape);

// Replaces the file. If it cannot be written, returns the system's reason, with the path.
Status write_npy(const std::string& path, const HostTensor<float>& tensor);

}  // namespace tessera::examples

#endif  // TESSERA_EXAMPLES_NPY_H_
