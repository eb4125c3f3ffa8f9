// SPDX-License-Identifier: Apache-2.0
#include "relayout/testing/case_table.h"

#include <fstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "layout/layout.h"
#include "mesh/mesh.h"

namespace tessera::testing {
namespace {

constexpr const char* kPath = "relayout/testdata/relayout_cases.tsv";

StatusOr<int64_t> parse_number(absl::string_view text) {
  int64_t number = 0;
  if (absl::SimpleAtoi(text, &number)) return number;
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not a number"));
}

StatusOr<Layout> parse_layout(absl::string_view mesh, absl::string_view devices,
                              absl::string_view layout) {
  TESSERA_ASSIGN_OR_RETURN(
      Mesh parsed,
      Mesh::parse(devices == "-" ? std::string(mesh) : absl::StrCat(mesh, " on ", devices)));
  return Layout::parse(std::move(parsed), layout);
}

StatusOr<CaseRow> parse_row(absl::string_view line) {
  const std::vector<absl::string_view> cells = absl::StrSplit(line, '\t');
  if (cells.size() != 9) {
    return absl::InvalidArgumentError(absl::StrCat("it has ", cells.size(), " cells instead of 9"));
  }
  TESSERA_ASSIGN_OR_RETURN(Layout from, parse_layout(cells[1], cells[2], cells[6]));
  TESSERA_ASSIGN_OR_RETURN(Layout to, parse_layout(cells[3], cells[4], cells[7]));
  Shape shape;
  for (absl::string_view size :
       absl::StrSplit(cells[5], absl::ByAnyChar("[], "), absl::SkipEmpty())) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t n, parse_number(size));
    shape.push_back(n);
  }
  TESSERA_ASSIGN_OR_RETURN(const int64_t received, parse_number(cells[8]));
  return CaseRow{
      std::string(cells[0]), {std::move(from), std::move(to), std::move(shape)}, received};
}

}  // namespace

StatusOr<std::vector<CaseRow>> read_case_table() {
  std::ifstream file(kPath);
  if (!file.is_open()) return absl::NotFoundError(absl::StrCat("no file ", kPath));
  std::vector<CaseRow> rows;
  std::string line;
  std::getline(file, line);  // The names of the columns.
  while (std::getline(file, line)) {
    StatusOr<CaseRow> row = parse_row(line);
    TESSERA_RETURN_IF_ERROR(with_context(row.status(), absl::StrCat("row \"", line, "\"")));
    rows.push_back(*std::move(row));
  }
  return rows;
}

}  // namespace tessera::testing
