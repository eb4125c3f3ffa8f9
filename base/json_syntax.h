// SPDX-License-Identifier: Apache-2.0
//
// JSON that users write: finds the mistakes that the parser of nlohmann-json accepts, or reports
// only by an exception.
#ifndef TESSERA_BASE_JSON_SYNTAX_H_
#define TESSERA_BASE_JSON_SYNTAX_H_

#include <string>

#include "absl/strings/string_view.h"

namespace tessera {

// Says why `text` is not one JSON value: the place of the mistake, with "; expected EXPECTED" at
// the end, or the field that is given twice. Empty for a good text, which json::parse() then reads.
//
//   json_problem("{\"a\": ", "an object")  ->  is not valid JSON at character 6, at "{\"a\": ";
//                                              expected an object
std::string json_problem(absl::string_view text, absl::string_view expected);

}  // namespace tessera

#endif  // TESSERA_BASE_JSON_SYNTAX_H_
