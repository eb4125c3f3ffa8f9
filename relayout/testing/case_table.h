// SPDX-License-Identifier: Apache-2.0
//
// The rows of relayout/testdata/relayout_cases.tsv: relayouts with a known answer.
// tests/facts/relayout.md explains the columns.
#ifndef TESSERA_RELAYOUT_TESTING_CASE_TABLE_H_
#define TESSERA_RELAYOUT_TESTING_CASE_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "relayout/testing/small_relayouts.h"

namespace tessera::testing {

struct CaseRow {
  std::string id;
  RelayoutCase relayout;
  int64_t max_received_elements;  // Must be received by the device that receives most.
};

// All rows, in the order of the file, found from the working directory of a test. NotFound where
// the file is not there; InvalidArgument names the row that cannot be read.
StatusOr<std::vector<CaseRow>> read_case_table();

}  // namespace tessera::testing

#endif  // TESSERA_RELAYOUT_TESTING_CASE_TABLE_H_
