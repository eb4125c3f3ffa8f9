// SPDX-License-Identifier: Apache-2.0
#include "servers/partitioner.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/exception_status.h"
#include "base/status.h"
#include "layout/layout.h"
#include "servers/shard_rows.h"

namespace tessera::distribute {
namespace {

int64_t row_bytes(const Shape& shape, DType dtype) { return num_bytes(shape, dtype) / shape[0]; }

int at_most(int64_t shards, std::optional<int> max_shards) {
  return static_cast<int>(
      std::min<int64_t>(shards, std::min(max_shards.value_or(std::numeric_limits<int>::max()),
                                         std::numeric_limits<int>::max())));
}

// The type of the partitioners of this header, so that their values can be checked.
struct BuiltIn {
  enum class Kind { kFixed, kMinSize, kMaxSize };

  int operator()(const Shape& shape, DType dtype, int /*num_ps*/) const {
    if (!validate().ok()) return 0;
    const int64_t rows = shape[0];
    switch (kind) {
      case Kind::kFixed:
        return static_cast<int>(size);
      case Kind::kMinSize: {
        // The smallest of n shards has floor(rows / n) rows.
        const int64_t row = row_bytes(shape, dtype);
        const int64_t least_rows = size / row + (size % row != 0);
        return at_most(std::max<int64_t>(rows / least_rows, 1), max_shards);
      }
      case Kind::kMaxSize: {
        // The largest has ceil(rows / n).
        const int64_t most_rows = std::max<int64_t>(size / row_bytes(shape, dtype), 1);
        return at_most(rows / most_rows + (rows % most_rows != 0), max_shards);
      }
    }
    return 0;
  }

  Status validate() const {
    static constexpr const char* kNames[] = {"fixed_shards", "min_size", "max_size"};
    const bool is_of_bytes = kind != Kind::kFixed;
    const std::string call =
        absl::StrCat(kNames[static_cast<int>(kind)], "(", size,
                     max_shards.has_value() ? absl::StrCat(", ", *max_shards) : std::string(), ")");
    if (size < 1) {
      return absl::InvalidArgumentError(absl::StrCat("the partitioner is ", call, "; give 1 ",
                                                     is_of_bytes ? "byte" : "shard", " or more"));
    }
    if (max_shards.has_value() && *max_shards < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("the partitioner is ", call, "; let it make 1 shard or more"));
    }
    return absl::OkStatus();
  }

  Kind kind;
  int64_t size;  // shards, or bytes
  std::optional<int> max_shards;
};

}  // namespace

Partitioner fixed_shards(int n) { return BuiltIn{BuiltIn::Kind::kFixed, n, {}}; }
Partitioner min_size(int64_t min_shard_bytes, int max_shards) {
  return BuiltIn{BuiltIn::Kind::kMinSize, min_shard_bytes, max_shards};
}
Partitioner max_size(int64_t max_shard_bytes, std::optional<int> max_shards) {
  return BuiltIn{BuiltIn::Kind::kMaxSize, max_shard_bytes, max_shards};
}

namespace internal {

Status validate(const Partitioner& partitioner) {
  const auto* const built_in = partitioner.target<BuiltIn>();
  return built_in == nullptr ? absl::OkStatus() : built_in->validate();
}

StatusOr<std::vector<int64_t>> shard_rows(const Partitioner& partitioner, const Shape& shape,
                                          DType dtype, int num_ps) {
  if (shape.empty()) return std::vector<int64_t>{1};
  const int64_t rows = shape[0];
  if (!partitioner || num_elements(shape) == 0) return std::vector<int64_t>{rows};
  const StatusOr<int> answer =
      call_guarded<StatusOr<int>>([&] { return partitioner(shape, dtype, num_ps); });
  TESSERA_RETURN_IF_ERROR(with_context(answer.status(), "the partitioner"));
  const int asked = *answer;
  if (asked < 1) {
    return absl::InvalidArgumentError(absl::StrCat("the partitioner asks for ", asked,
                                                   " shards of shape ", shape_to_string(shape),
                                                   "; it must return 1 or more"));
  }
  const int64_t num_shards = std::min<int64_t>(asked, rows);
  std::vector<int64_t> result;
  for (int64_t shard = 0; shard < num_shards; ++shard) {
    const auto [first, end] = shard_interval(rows, num_shards, shard);
    result.push_back(end - first);
  }
  return result;
}

}  // namespace internal
}  // namespace tessera::distribute
