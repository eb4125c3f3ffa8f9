// SPDX-License-Identifier: Apache-2.0
//
// run_isolated: a part of a test as a forked child of its process.
//
//   EXPECT_THAT(run_isolated(absl::Seconds(10), []() -> Status {
//     setenv("NCCL_PROTO", "LL", 1);             the test's own environment stays as it is
//     TESSERA_REQUIRE(reads_the_protocol());
//     return absl::OkStatus();
//   }), IsOk());
//
// The test survives any end of the child, and the child has a deadline: at the deadline the child
// is killed with all processes that it has started, and the Status says so. The body reports by its
// Status, because expectations of a child are not counted.
#ifndef TESSERA_TESTS_SUPPORT_FORKED_H_
#define TESSERA_TESTS_SUPPORT_FORKED_H_

#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"

// Returns Internal with the text of the condition from the enclosing function unless it holds.
// Further arguments are appended to the message.
#define TESSERA_REQUIRE(condition, ...)                                                          \
  do {                                                                                           \
    if (!(condition)) {                                                                          \
      return absl::InternalError(absl::StrCat(                                                   \
          __FILE__, ":", __LINE__, ": not true: ", #condition __VA_OPT__(, " ", ) __VA_ARGS__)); \
    }                                                                                            \
  } while (false)

namespace tessera::testing {

// Runs `body` in a forked child with a deadline, and returns its Status; a crash is Aborted.
Status run_isolated(absl::Duration deadline, const std::function<Status()>& body);
// As run_isolated(), in so many children at a time; `body` gets the child's number.
std::vector<Status> run_forked(int num_children, absl::Duration deadline,
                               const std::function<Status(int child)>& body);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_FORKED_H_
