// SPDX-License-Identifier: Apache-2.0
//
// npy: the header of a .npy file of NumPy, which holds one array (numpy.lib.format, versions 1.0,
// 2.0 and 3.0).
//
//   "\x93NUMPY" major minor | length: 2 bytes, from version 2 on 4 | {'descr': '<f4', ...} | data
//
// The header is a dictionary of Python with three keys, which are read by hand: nothing is
// evaluated. 'descr' is the element type, 'fortran_order' says that the first dim is the innermost,
// 'shape' is a tuple.
//
// Invariants of a header that was read: the sizes are not negative, their product fits 64 bits, the
// rank is at most kMaxRank, and the file has all bytes of the array. Bytes after the array are not
// looked at: numpy.save may put several arrays into one file.
//
// Errors: InvalidArgument for what is no .npy file; DataLoss where the file ends before its header
// or its array do; Unimplemented for other versions and for element types that NumPy has and
// Tessera lacks, which includes every object that would be unpickled. Nothing is allocated from a
// number that was not compared with the size of the file.
#ifndef TESSERA_FILES_NPY_H_
#define TESSERA_FILES_NPY_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "files/random_access_file.h"

namespace tessera::files {

struct NpyHeader {
  DType dtype;
  Shape shape;
  bool is_fortran;     // the first dim is the innermost in the file
  bool is_big_endian;  // false for elements of one byte
  int64_t data_offset;
};

// A longer header is InvalidArgument. NumPy's own reader stops at 10,000 bytes.
inline constexpr int64_t kMaxNpyHeaderBytes = 1 << 20;

// Reads the header of a file of `file_bytes`. `front` is its beginning: all before the data, or
// more, or the whole of a file that is shorter. The caller adds the name of the file to an error.
StatusOr<NpyHeader> parse_npy(absl::string_view front, int64_t file_bytes);

// Reads the header of `file`; errors begin with its path.
StatusOr<NpyHeader> read_npy_header(const RandomAccessFile& file);

// The bytes before the elements of a row-major array, as NumPy 2 writes them: version 1.0, the data
// at a multiple of 64. Requires a dtype but kBFloat16, which NumPy lacks.
std::string format_npy_header(DType dtype, const Shape& shape);

}  // namespace tessera::files

#endif  // TESSERA_FILES_NPY_H_
