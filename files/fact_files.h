// SPDX-License-Identifier: Apache-2.0
//
// The small files of testdata/checkpoint_files.tsv, each with the answer that a reader must give
// (tests/facts/files.md), and the tests of a reader that go through them.
#ifndef TESSERA_FILES_FACT_FILES_H_
#define TESSERA_FILES_FACT_FILES_H_

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/status.h"

namespace tessera::files {

struct FactFile {
  std::string name;
  absl::StatusCode answer;
  std::string bytes;
};

// The row of a test for a file: the text of its header, or a part of the error.
struct FactRow {
  const char* name;
  const char* expected;
};

// A reader of headers: of bytes, and of the file at a path.
using ReadBytes = absl::FunctionRef<Status(absl::string_view bytes)>;
using ReadPath = absl::FunctionRef<Status(const std::string& path)>;

// The files of a kind, "safetensors" or "npy", in the order of the table. Requires that the table
// is there, as it is in tests that depend on this target.
std::vector<FactFile> fact_files(absl::string_view kind);

// Each row with its file, which must be there; each file must have a row.
void for_each_row(
    absl::Span<const FactFile> files, absl::Span<const FactRow> rows,
    absl::FunctionRef<void(const FactFile& file, const std::string& path, const char* expected)>
        check);
// Readers must refuse each file with its answer, for the reason of its row.
void expect_refused(absl::Span<const FactFile> files, absl::Span<const FactRow> rows,
                    ReadBytes read_bytes, ReadPath read_path);
// Each file of the kind with each of its bits flipped: a reader returns OK or refuses it as
// malformed, and both occur.
void for_each_flipped_bit(absl::string_view kind, ReadBytes read_bytes);

}  // namespace tessera::files

#endif  // TESSERA_FILES_FACT_FILES_H_
