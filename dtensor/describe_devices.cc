// SPDX-License-Identifier: Apache-2.0
#include "dtensor/describe_devices.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/stable_hash.h"

namespace tessera {

std::string describe_devices(absl::Span<const int> ids) {
  constexpr size_t kMostRuns = 16;
  std::vector<std::string> runs;
  for (size_t first = 0, next; first < ids.size(); first = next) {
    next = first + 1;
    while (next < ids.size() && ids[next] == ids[next - 1] + 1) ++next;
    if (runs.size() == kMostRuns) {
      const uint64_t hash = stable_hash(ids.subspan(first));
      runs.push_back(absl::StrCat("and ", ids.size() - first, " more with hash ", absl::Hex(hash)));
      break;
    }
    const int last = ids[next - 1];
    runs.push_back(next == first + 1   ? absl::StrCat(last)
                   : next == first + 2 ? absl::StrCat(ids[first], ", ", last)
                                       : absl::StrCat(ids[first], "-", last));
  }
  return absl::StrCat("[", absl::StrJoin(runs, ", "), "]");
}

}  // namespace tessera
