// SPDX-License-Identifier: Apache-2.0
//
// The sources that read files: .npy, IDX, CSV, lines of text, records of one size. Internal to
// input/.
//
// A source reads headers and the positions of lines when it is made, and elements when they are
// asked for. An error names the file, and the line or the record.
#ifndef TESSERA_INPUT_FILE_SOURCES_H_
#define TESSERA_INPUT_FILE_SOURCES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "input/csv_options.h"
#include "input/source.h"

namespace tessera::input::internal {

// A source and the hash of its description.
struct NamedSource {
  std::shared_ptr<const Source> source;
  uint64_t hash;
};

StatusOr<NamedSource> npy_source(const std::string& file);
StatusOr<NamedSource> idx_source(const std::string& file);
StatusOr<NamedSource> csv_source(const std::vector<std::string>& files,
                                 const std::vector<DType>& columns, const CsvOptions& options);
StatusOr<NamedSource> text_source(const std::vector<std::string>& files);
StatusOr<NamedSource> record_source(const std::vector<std::string>& files, int64_t bytes);

// The header of a file of one array.
struct ArrayHeader {
  DType dtype;
  Shape shape;
  bool is_big_endian;
  bool is_fortran;  // the first dim is the innermost in the file
  int64_t data_offset;
};
// Reads the header from the first bytes of a file: at most kMaxNpyHeaderBytes or
// kMaxIdxHeaderBytes.
inline constexpr int64_t kMaxNpyHeaderBytes = 1 << 16;
inline constexpr int64_t kMaxIdxHeaderBytes = 4 + 255 * 4;
StatusOr<ArrayHeader> parse_npy_header(absl::string_view bytes);
StatusOr<ArrayHeader> parse_idx_header(absl::string_view bytes);

// Reads a line of a CSV file: a scalar for each column. An error names the column.
StatusOr<Element> parse_csv_line(absl::string_view line, absl::Span<const DType> columns);

}  // namespace tessera::input::internal

#endif  // TESSERA_INPUT_FILE_SOURCES_H_
