// SPDX-License-Identifier: Apache-2.0
#include "files/fact_files.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/text.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/folder.h"
#include "tests/support/matchers.h"

namespace tessera::files {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::StatusIs;

absl::StatusCode code_of(absl::string_view answer) {
  if (answer == "OK") return absl::StatusCode::kOk;
  if (answer == "DataLoss") return absl::StatusCode::kDataLoss;
  if (answer == "Unimplemented") return absl::StatusCode::kUnimplemented;
  TESSERA_CHECK(answer == "InvalidArgument", "an answer of the table is known");
  return absl::StatusCode::kInvalidArgument;
}

}  // namespace

std::vector<FactFile> fact_files(absl::string_view kind) {
  std::ifstream table("files/testdata/checkpoint_files.tsv");
  std::vector<FactFile> result;
  for (std::string line; std::getline(table, line);) {
    const std::vector<std::string> fields = absl::StrSplit(line, '\t');
    TESSERA_CHECK(fields.size() == 4, "a row of the table has 4 fields");
    if (fields[1] != kind) continue;
    result.push_back({fields[0], code_of(fields[2]), bytes_of_hex(fields[3]).value()});
  }
  TESSERA_CHECK(!result.empty(), "the table has files of this kind");
  return result;
}

void for_each_row(
    absl::Span<const FactFile> files, absl::Span<const FactRow> rows,
    absl::FunctionRef<void(const FactFile& file, const std::string& path, const char* expected)>
        check) {
  ASSERT_EQ(files.size(), rows.size());
  const testing::Folder folder;
  for (const FactRow& row : rows) {
    SCOPED_TRACE(row.name);
    const auto file = std::find_if(files.begin(), files.end(),
                                   [&](const FactFile& file) { return file.name == row.name; });
    ASSERT_NE(file, files.end());
    testing::write_bytes(folder / row.name, file->bytes);
    check(*file, folder / row.name, row.expected);
  }
}

void expect_refused(absl::Span<const FactFile> files, absl::Span<const FactRow> rows,
                    ReadBytes read_bytes, ReadPath read_path) {
  for_each_row(files, rows, [&](const FactFile& file, const std::string& path, const char* reason) {
    EXPECT_THAT(read_bytes(file.bytes), StatusIs(file.answer, HasSubstr(reason)));
    EXPECT_THAT(read_path(path),
                StatusIs(file.answer, AllOf(HasSubstr(absl::StrCat("file \"", path, "\": ")),
                                            HasSubstr(reason))));
  });
}

void for_each_flipped_bit(absl::string_view kind, ReadBytes read_bytes) {
  int num_good = 0, num_bad = 0;
  for (const FactFile& file : fact_files(kind)) {
    SCOPED_TRACE(file.name);
    std::string bytes = file.bytes;
    for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
      const Status status = read_bytes(bytes);
      bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
      ++(status.ok() ? num_good : num_bad);
      ASSERT_TRUE(status.ok() || absl::IsInvalidArgument(status) || absl::IsDataLoss(status) ||
                  absl::IsUnimplemented(status))
          << status << ", bit " << bit;
      ASSERT_FALSE(::testing::Test::HasFatalFailure()) << "bit " << bit;
    }
  }
  EXPECT_GT(num_good, 1000);  // such as bits of names and of values
  EXPECT_GT(num_bad, 1000);
}

}  // namespace tessera::files
