// SPDX-License-Identifier: Apache-2.0
//
// read_npy_box: the elements of a box of the array in a .npy file.
//
// Runs of 64 KiB or more are read into their place, shorter ones by way of a buffer of 4 MiB. An
// array in Fortran order takes memory for the box once more. Big-endian numbers are swapped.
#ifndef TESSERA_FILES_NPY_DATA_H_
#define TESSERA_FILES_NPY_DATA_H_

#include <cstddef>

#include "base/shape.h"
#include "base/status.h"
#include "files/npy.h"
#include "files/random_access_file.h"

namespace tessera::files {

// `out` has the bytes of the box, row-major. Requires a box inside the shape of the header. Bytes
// of a bool become 0 or 1.
Status read_npy_box(const RandomAccessFile& file, const NpyHeader& header, const Box& box,
                    std::byte* out);

}  // namespace tessera::files

#endif  // TESSERA_FILES_NPY_DATA_H_
