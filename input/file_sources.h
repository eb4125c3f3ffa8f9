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
#include "base/status.h"
#include "input/csv_options.h"
#include "input/source.h"

namespace tessera::input::internal {

// A source and the hash of its description.
struct NamedSource {
  std::shared_ptr<const Source> source;
  uint64_t hash;
};

StatusOr<NamedSource> npy_source(const std::string& path);
StatusOr<NamedSource> idx_source(const std::string& path);
StatusOr<NamedSource> csv_source(const std::vector<std::string>& files,
                                 const std::vector<DType>& columns, const CsvOptions& options);
StatusOr<NamedSource> text_source(const std::vector<std::string>& files);
StatusOr<NamedSource> record_source(const std::vector<std::string>& files, int64_t bytes);

// Reads a line of a CSV file: a scalar for each column. An error names the column.
StatusOr<Element> parse_csv_line(absl::string_view line, absl::Span<const DType> columns);

}  // namespace tessera::input::internal

#endif  // TESSERA_INPUT_FILE_SOURCES_H_
