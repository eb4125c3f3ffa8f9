// SPDX-License-Identifier: Apache-2.0
//
// The macros that pass errors up, and the checks that stop at our own bugs.
#include "base/status.h"

#include <memory>
#include <string>

#include "base/check.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::tessera::testing::IsOk;
using ::tessera::testing::IsOkAndHolds;
using ::tessera::testing::StatusIs;

Status fail_if(bool fails) { return fails ? absl::NotFoundError("gone") : absl::OkStatus(); }

StatusOr<int> number_or_error(bool fails) {
  if (fails) return absl::NotFoundError("gone");
  return 7;
}

Status run_all(bool first_fails, bool second_fails, std::string& trace) {
  TESSERA_RETURN_IF_ERROR(fail_if(first_fails));
  trace += "a";
  TESSERA_RETURN_IF_ERROR(number_or_error(second_fails));
  trace += "b";
  return absl::OkStatus();
}

TEST(ReturnIfErrorTest, ReturnsTheFirstError) {
  std::string trace;
  EXPECT_THAT(run_all(false, false, trace), IsOk());
  EXPECT_EQ(trace, "ab");
  trace.clear();
  EXPECT_THAT(run_all(false, true, trace), StatusIs(absl::StatusCode::kNotFound, "gone"));
  EXPECT_EQ(trace, "a");
  trace.clear();
  EXPECT_THAT(run_all(true, false, trace), StatusIs(absl::StatusCode::kNotFound, "gone"));
  EXPECT_EQ(trace, "");
}

// The destructor writes the status that error() lends.
class Lender {
 public:
  explicit Lender(Status& status) : status_(status) {}
  ~Lender() { status_ = absl::InternalError("read after the lender's end"); }
  const Status& error() const { return status_; }

 private:
  Status& status_;
};

TEST(ReturnIfErrorTest, ReadsAnErrorWhileItsTemporariesLive) {
  const auto call = [](Status status) -> Status {
    TESSERA_RETURN_IF_ERROR(Lender(status).error());
    return absl::OkStatus();
  };
  EXPECT_THAT(call(absl::OkStatus()), IsOk());
  EXPECT_THAT(call(absl::NotFoundError("gone")), StatusIs(absl::StatusCode::kNotFound, "gone"));
}

TEST(ReturnIfErrorTest, IsOneStatement) {
  const auto call = [](bool checks) -> Status {
    if (checks)
      TESSERA_RETURN_IF_ERROR(fail_if(true));
    else
      return absl::AbortedError("not checked");
    return absl::OkStatus();
  };
  EXPECT_THAT(call(true), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(call(false), StatusIs(absl::StatusCode::kAborted));
}

StatusOr<int> add(bool first_fails, bool second_fails) {
  TESSERA_ASSIGN_OR_RETURN(const int a, number_or_error(first_fails));
  int b = 0;
  TESSERA_ASSIGN_OR_RETURN(b, number_or_error(second_fails));
  return a + b;
}

TEST(AssignOrReturnTest, DeclaresOrAssigns) {
  EXPECT_THAT(add(false, false), IsOkAndHolds(14));
  EXPECT_THAT(add(true, false), StatusIs(absl::StatusCode::kNotFound, "gone"));
  EXPECT_THAT(add(false, true), StatusIs(absl::StatusCode::kNotFound, "gone"));
}

TEST(AssignOrReturnTest, MovesTheValue) {
  const auto make = []() -> StatusOr<std::unique_ptr<int>> { return std::make_unique<int>(3); };
  const auto call = [&]() -> StatusOr<int> {
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<int> value, make());
    return *value;
  };
  EXPECT_THAT(call(), IsOkAndHolds(3));
}

TEST(WithContextTest, GoesBeforeTheMessageOfAnError) {
  EXPECT_THAT(with_context(absl::NotFoundError("gone"), "opening \"a\""),
              StatusIs(absl::StatusCode::kNotFound, "opening \"a\": gone"));
  EXPECT_THAT(with_context(absl::NotFoundError(""), "opening \"a\""),
              StatusIs(absl::StatusCode::kNotFound, "opening \"a\""));
  EXPECT_THAT(with_context(absl::OkStatus(), "opening \"a\""), IsOk());
}

TEST(CheckDeathTest, NamesTheConditionAndTheReason) {
  const int found = 3;
  TESSERA_CHECK(found == 3, "three");
  EXPECT_DEATH(TESSERA_CHECK(found == 4, "four were promised"),
               "check failed: found == 4 \\(four were promised\\)");
}

}  // namespace
}  // namespace tessera
