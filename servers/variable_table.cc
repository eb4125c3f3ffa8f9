// SPDX-License-Identifier: Apache-2.0
#include "servers/variable_table.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/format.h"
#include "base/text.h"
#include "servers/tensor_message.h"

namespace tessera::distribute::internal {

Status VariableTable::add(VariablePlace* place) {
  for (int shard = 0; shard < static_cast<int>(place->rows.size()); ++shard) {
    if (place->shard_bytes(shard) <= kMostMessageBytes) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("variable ", in_quotes(place->name), " has a shard of ",
                     format_bytes(place->shard_bytes(shard)), "; the most is ",
                     format_bytes(kMostMessageBytes), ", use a partitioner such as max_size"));
  }
  if (!names_.insert(place->name).second) {
    return absl::AlreadyExistsError(absl::StrCat("variable ", in_quotes(place->name),
                                                 " is there; give each a name of its own"));
  }
  place->number = num_variables_++;
  for (size_t shard = 0; shard < place->rows.size(); ++shard) {
    place->ps.push_back(next_ps_);
    std::vector<std::string>& names = names_on_[next_ps_];
    if (names.empty() || names.back() != place->name) names.push_back(place->name);
    next_ps_ = (next_ps_ + 1) % static_cast<int>(names_on_.size());
  }
  return absl::OkStatus();
}

std::string VariableTable::names_on(int ps) const {
  return absl::StrJoin(names_on_[ps], ", ", [](std::string* out, const std::string& name) {
    absl::StrAppend(out, in_quotes(name));
  });
}

}  // namespace tessera::distribute::internal
