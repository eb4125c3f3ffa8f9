// SPDX-License-Identifier: Apache-2.0
//
// GoogleMock matchers for Status and StatusOr, with the meaning of upstream's absl/status
// status_matchers.h (absent in Abseil 20220623), so that they can be swapped.
//
//   EXPECT_THAT(mesh.barrier(), IsOk());
//   EXPECT_THAT(parse("x"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("x")));
//   EXPECT_THAT(mesh.axis_size("x"), IsOkAndHolds(2));
#ifndef TESSERA_TESTS_SUPPORT_MATCHERS_H_
#define TESSERA_TESTS_SUPPORT_MATCHERS_H_

#include <string>
#include <utility>

#include "base/status.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace tessera::testing {

MATCHER(IsOk, negation ? "is an error" : "is OK") {
  const Status& status = internal::as_status(arg);
  if (!status.ok()) *result_listener << status;
  return status.ok();
}

template <class CodeMatcher, class MessageMatcher>
auto StatusIs(CodeMatcher code, MessageMatcher message) {
  return ::testing::ResultOf(
      [](const auto& value) {
        const Status& status = internal::as_status(value);
        return std::make_pair(status.code(), std::string(status.message()));
      },
      ::testing::Pair(code, message));
}

template <class CodeMatcher>
auto StatusIs(CodeMatcher code) {
  return StatusIs(code, ::testing::_);
}

MATCHER_P(IsOkAndHolds, value_matcher, "is OK and holds a matching value") {
  if (!arg.ok()) {
    *result_listener << arg.status();
    return false;
  }
  return ::testing::ExplainMatchResult(value_matcher, *arg, result_listener);
}

}  // namespace tessera::testing

namespace absl {
// GoogleTest prints a failing Status by this.
inline void PrintTo(const Status& status, std::ostream* out) { *out << status.ToString(); }
}  // namespace absl

// For a StatusOr that the test cannot go on without: declares `target`, or fails the test.
#define TESSERA_ASSERT_OK_AND_ASSIGN(target, expression)      \
  auto TESSERA_CONCAT_(tessera_or_, __LINE__) = (expression); \
  ASSERT_TRUE(TESSERA_CONCAT_(tessera_or_, __LINE__).ok())    \
      << TESSERA_CONCAT_(tessera_or_, __LINE__).status();     \
  target = *std::move(TESSERA_CONCAT_(tessera_or_, __LINE__))

#endif  // TESSERA_TESTS_SUPPORT_MATCHERS_H_
