// SPDX-License-Identifier: Apache-2.0
//
// Exchange: each member pulls boxes out of the memory of others. Here each of four clients has two
// rows of an 8 x 3 grid, and pulls the row above its rows and the row below them: a halo. MPI: the
// halo exchange of a Cartesian grid. torch.distributed has no equivalent.
//
//   bazel run //examples/groups:exchange
//
// Output, in any order of the lines:
//   client 0: rows 0 to 2 are 0 1 2
//   client 1: rows 1 to 4 are 1 2 3 4
//   client 2: rows 3 to 6 are 3 4 5 6
//   client 3: rows 5 to 7 are 5 6 7
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tessera/tessera.h"

using namespace tessera;

constexpr int64_t kRows = 8;
constexpr int64_t kColumns = 3;

// Rows first to limit - 1 of the grid.
Box rows(int64_t first, int64_t limit) { return {{first, 0}, {limit - first, kColumns}}; }

// The rows that a member has.
Box own_rows(int member) { return rows(2 * member, 2 * member + 2); }

Status run(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(const Group group, client.group());
  const int me = group.position();

  // The own rows, and a row more on each side where the grid goes on.
  const int64_t first = std::max<int64_t>(0, 2 * me - 1);
  const int64_t limit = std::min<int64_t>(kRows, 2 * me + 3);
  TESSERA_ASSIGN_OR_RETURN(DeviceSpan<float> own, client.allocate<float>(0, 2 * kColumns));
  TESSERA_ASSIGN_OR_RETURN(DeviceSpan<float> wide,
                           client.allocate<float>(0, (limit - first) * kColumns));
  for (size_t i = 0; i < own.size(); ++i) {
    own[i] = static_cast<float>(2 * me + static_cast<int64_t>(i) / kColumns);  // the row's number
  }

  // One pull for each row: from the member that has it, out of that member's rows.
  std::vector<BoxPull> pulls;
  for (int64_t row = first; row < limit; ++row) {
    const int source = static_cast<int>(row / 2);
    pulls.push_back({source, own_rows(source), rows(row, row + 1)});
  }
  TESSERA_RETURN_IF_ERROR(
      group.exchange(own, own_rows(me), wide, rows(first, limit), pulls).await());

  std::string text;
  for (int64_t row = first; row < limit; ++row) {
    absl::StrAppend(&text, " ", wide[(row - first) * kColumns]);
  }
  std::printf("client %d: rows %ld to %ld are%s\n", client.client_id(), static_cast<long>(first),
              static_cast<long>(limit - 1), text.c_str());
  return absl::OkStatus();
}

int main() {
  const Status status = spawn(4, run);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
