// SPDX-License-Identifier: Apache-2.0
//
// Environments of tests: variables that a table gives, instead of the variables of the process.
#ifndef TESSERA_JOB_TESTING_VARIABLES_H_
#define TESSERA_JOB_TESTING_VARIABLES_H_

#include <map>
#include <string>

#include "job/environment/environment_lookup.h"

namespace tessera::testing {

using Variables = std::map<std::string, std::string>;

// `variables` must outlive the result.
inline EnvironmentLookup lookup_of(const Variables& variables) {
  return [&variables](const char* name) -> const char* {
    const auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  };
}

inline Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

inline Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

}  // namespace tessera::testing

#endif  // TESSERA_JOB_TESTING_VARIABLES_H_
