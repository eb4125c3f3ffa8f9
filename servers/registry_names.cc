// SPDX-License-Identifier: Apache-2.0
#include "servers/registry_names.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/text.h"

namespace tessera::distribute::internal {
namespace {

bool contains(absl::Span<const std::string> names, absl::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// `what` is the kind in messages, such as "function".
Status check_name(absl::string_view what, absl::string_view name,
                  absl::Span<const std::string> names) {
  if (contains(names, name)) return absl::OkStatus();
  const std::string all = absl::StrJoin(names, ", ", [](std::string* out, const std::string& n) {
    absl::StrAppend(out, in_quotes(n));
  });
  return absl::NotFoundError(absl::StrCat(what, " ", in_quotes(name),
                                          " is not in the registry of the workers, which has ",
                                          names.empty() ? "none" : all));
}

Status check_lacks_nothing(absl::string_view what, const std::string& worker,
                           absl::Span<const std::string> its_names, const std::string& other,
                           absl::Span<const std::string> names) {
  for (const std::string& name : names) {
    if (contains(its_names, name)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the registry of ", worker, " lacks ", what, " ", in_quotes(name),
                     ", which that of ", other, " has; build the same registry in all workers"));
  }
  return absl::OkStatus();
}

}  // namespace

Status RegistryNames::add(const std::string& worker, std::vector<std::string> functions,
                          std::vector<std::string> datasets) {
  if (first_worker_.empty()) {
    first_worker_ = worker;
    functions_ = std::move(functions);
    datasets_ = std::move(datasets);
    return absl::OkStatus();
  }
  const auto check_equal = [&](absl::string_view what, absl::Span<const std::string> names,
                               absl::Span<const std::string> first_names) {
    const Status lacks = check_lacks_nothing(what, worker, names, first_worker_, first_names);
    return lacks.ok() ? check_lacks_nothing(what, first_worker_, first_names, worker, names)
                      : lacks;
  };
  TESSERA_RETURN_IF_ERROR(check_equal("function", functions, functions_));
  return check_equal("data set", datasets, datasets_);
}

Status RegistryNames::check_function(absl::string_view name) const {
  return check_name("function", name, functions_);
}
Status RegistryNames::check_dataset(absl::string_view name) const {
  return check_name("data set", name, datasets_);
}

}  // namespace tessera::distribute::internal
