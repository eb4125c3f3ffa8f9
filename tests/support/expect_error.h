// SPDX-License-Identifier: Apache-2.0
//
// expect_error: an expectation about a Status for the body of a client, because GoogleTest does not
// count expectations in a forked child.
#ifndef TESSERA_TESTS_SUPPORT_EXPECT_ERROR_H_
#define TESSERA_TESTS_SUPPORT_EXPECT_ERROR_H_

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/status.h"
#include "tests/support/forked.h"

namespace tessera::testing {

// Fails the client's body unless the status has this code and every text in its message.
inline Status expect_error(const Status& status, absl::StatusCode code,
                           const std::vector<std::string>& texts = {}) {
  TESSERA_REQUIRE(status.code() == code, "got ", status.ToString());
  for (const std::string& text : texts) {
    TESSERA_REQUIRE(absl::StrContains(status.message(), text), "\"", text, "\" in ",
                    status.ToString());
  }
  return absl::OkStatus();
}

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_EXPECT_ERROR_H_
