// SPDX-License-Identifier: Apache-2.0
#include "servers/function_registry.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace tessera::distribute {
namespace {

template <class Fn>
using Registered = std::map<std::string, Fn, std::less<>>;

// `what` is the kind in messages, such as "function".
template <class Fn>
Status add_to(Registered<Fn>* registered, absl::string_view what, std::string name, Fn fn) {
  if (name.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("a ", what, " needs a name that is not empty"));
  }
  if (!fn) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " ", in_quotes(name), " is empty; give a function that can be called"));
  }
  const auto [it, is_new] = registered->try_emplace(std::move(name), std::move(fn));
  if (is_new) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(what, " ", in_quotes(it->first),
                                               " is in the registry; give each a name of its own"));
}

template <class Fn>
std::vector<std::string> names_of(const Registered<Fn>& registered) {
  std::vector<std::string> result;
  for (const auto& [name, fn] : registered) result.push_back(name);
  return result;
}

template <class Fn>
const Fn* find_in(const Registered<Fn>& registered, absl::string_view name) {
  const auto it = registered.find(std::string(name));
  return it == registered.end() ? nullptr : &it->second;
}

}  // namespace

Status FunctionRegistry::add(std::string name, Function fn) {
  return add_to(&functions_, "function", std::move(name), std::move(fn));
}
Status FunctionRegistry::add_dataset(std::string name, DatasetFunction fn) {
  return add_to(&datasets_, "data set", std::move(name), std::move(fn));
}

std::vector<std::string> FunctionRegistry::names() const { return names_of(functions_); }
std::vector<std::string> FunctionRegistry::dataset_names() const { return names_of(datasets_); }

const FunctionRegistry::Function* FunctionRegistry::find(absl::string_view name) const {
  return find_in(functions_, name);
}
const FunctionRegistry::DatasetFunction* FunctionRegistry::find_dataset(
    absl::string_view name) const {
  return find_in(datasets_, name);
}

}  // namespace tessera::distribute
