// SPDX-License-Identifier: Apache-2.0
#include "transport/connections.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tessera::transport {

Address Address::parse(const std::string& text) {
  std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(' ', 1));
  return {std::move(parts.first), std::move(parts.second)};
}

Status wrong_size(const std::string& sender, const Operation& receive, absl::string_view size) {
  return absl::InternalError(absl::StrCat("a message of ", sender, " with tag ", receive.tag,
                                          " has ", size, " bytes, its receive ",
                                          receive.num_bytes));
}

}  // namespace tessera::transport
