// SPDX-License-Identifier: Apache-2.0
#include "collectives/testing/conformance.h"

#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "collectives/testing/conformance_values.h"

namespace tessera::conformance {

Status expect_error(const Status& status, absl::StatusCode code,
                    absl::Span<const std::string> parts) {
  if (status.code() != code) {
    return absl::InternalError(absl::StrCat("status is ", status.ToString(), ", expected ",
                                            absl::StatusCodeToString(code)));
  }
  for (const std::string& part : parts) {
    if (!absl::StrContains(status.message(), part)) {
      return absl::InternalError(
          absl::StrCat("message \"", status.message(), "\" does not contain \"", part, "\""));
    }
  }
  return absl::OkStatus();
}

Status expect_same_text(const Group& group, absl::string_view text) {
  uint64_t hash = text.size();
  for (const char c : text) hash = mix(hash, static_cast<uint8_t>(c));
  const Values<int64_t> in = {static_cast<int64_t>(hash)};
  Values<int64_t> out(group.size());
  TESSERA_RETURN_IF_ERROR(group.all_gather<int64_t>(in.in(), out.out()).await());
  return expect_equal<int64_t>(out.in(), Values<int64_t>(group.size(), in[0]),
                               absl::StrCat("hashes of \"", text, "\" by member"));
}

Status expect_works(const Group& group) {
  const Values<int32_t> in = {group.position() + 1};
  Values<int32_t> out(1);
  const Status status = group.all_reduce<int32_t>(in.in(), out.out(), ReduceOp::kSum).await();
  if (!status.ok()) return with_context(status, "the operation after a failure");
  const int n = group.size();
  return expect_equal<int32_t>(out.in(), {n * (n + 1) / 2}, "the operation after a failure");
}

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (auto cases : {fact_cases(), message_cases(), error_cases(), sweep_cases()}) {
    all.insert(all.end(), std::make_move_iterator(cases.begin()),
               std::make_move_iterator(cases.end()));
  }
  return all;
}

void limit_sweeps(std::vector<Case>& cases, const SweepLimits& limits) {
  std::erase_if(cases, [&](const Case& c) {
    const bool is_of_dtype =
        absl::StartsWith(c.name, "reductions_") || absl::StartsWith(c.name, "moves_");
    const bool is_sweep = is_of_dtype || absl::StartsWith(c.name, "boxes_");
    const bool is_f32 = !is_of_dtype || absl::StrContains(c.name, "_f32_");
    return is_sweep && c.num_members > (is_f32 ? limits.f32 : limits.other_dtypes);
  });
}

}  // namespace tessera::conformance
