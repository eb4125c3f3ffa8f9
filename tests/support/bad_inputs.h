// SPDX-License-Identifier: Apache-2.0
//
// BadInput: a row of the table of bad inputs: a call, and the error that it must return.
//
//   const BadInput<Bench> kRows[] = {
//       {"negative_size", kInvalid, "shape [-1, 4] has size -1 in dim 0; a size is 0 or more",
//        [](Bench& b) { return zeros<float>({-1, 4}, b.rows).await(); }},
//   };
//   TEST_P(...) { EXPECT_THAT(expect_refused(GetParam(), GetParam().call(bench)), IsOk()); }
//
// "..." in the message of a row stands for any text: process ids, hosts, times.
#ifndef TESSERA_TESTS_SUPPORT_BAD_INPUTS_H_
#define TESSERA_TESTS_SUPPORT_BAD_INPUTS_H_

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "gtest/gtest.h"

namespace tessera::testing {

template <class Bench>
struct BadInput {
  const char* name;
  absl::StatusCode code;
  const char* message;
  std::function<Status(Bench& bench)> call;

  friend std::ostream& operator<<(std::ostream& out, const BadInput& row) {
    return out << row.name;
  }
};

template <class Bench>
std::string bad_input_name(const ::testing::TestParamInfo<BadInput<Bench>>& info) {
  return info.param.name;
}

// Whether `message` is `expected`, in which "..." stands for any text.
inline bool is_message(absl::string_view message, absl::string_view expected) {
  const std::vector<absl::string_view> parts = absl::StrSplit(expected, "...");
  if (parts.size() == 1) return message == expected;
  if (message.substr(0, parts[0].size()) != parts[0]) return false;
  size_t place = parts[0].size();
  for (size_t i = 1; i + 1 < parts.size(); ++i) {
    place = message.find(parts[i], place);
    if (place == absl::string_view::npos) return false;
    place += parts[i].size();
  }
  return message.size() >= place + parts.back().size() &&
         message.substr(message.size() - parts.back().size()) == parts.back();
}

// OK where `status` is the error of the row.
template <class Bench>
Status expect_refused(const BadInput<Bench>& row, const Status& status) {
  if (status.code() == row.code && is_message(status.message(), row.message)) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("got ", status.ToString(), "; expected ",
                                          absl::StatusCodeToString(row.code), ": ", row.message));
}

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_BAD_INPUTS_H_
