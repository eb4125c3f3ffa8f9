// SPDX-License-Identifier: Apache-2.0
//
// The form of a row of tests/facts/cluster.md: an environment, and the resulting cluster.
#ifndef TESSERA_JOB_TESTING_CLUSTER_CASES_H_
#define TESSERA_JOB_TESTING_CLUSTER_CASES_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/cluster/cluster.h"
#include "tests/support/matchers.h"

namespace tessera::testing {

// "client 1 of 2 at a:1", or "client 0 of 1, no coordinator"; with "; local 0 of 2" where the
// launcher says so.
inline std::string summary(const cluster::Cluster& cluster) {
  std::string text = absl::StrCat("client ", cluster.client_id, " of ", cluster.num_clients);
  absl::StrAppend(&text, cluster.coordinator.empty() ? ", no coordinator" : " at ",
                  cluster.coordinator);
  if (cluster.local_size.has_value()) {
    absl::StrAppend(&text, "; local ", cluster.local_rank.value_or(-1), " of ",
                    *cluster.local_size);
  }
  return text;
}

// Expects the summary; or, for "refused: MESSAGE", InvalidArgument with this message.
inline void expect_cluster(const StatusOr<cluster::Cluster>& cluster, const std::string& expected) {
  constexpr absl::string_view kRefused = "refused: ";
  if (expected.substr(0, kRefused.size()) != kRefused) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const cluster::Cluster found, cluster);
    EXPECT_EQ(summary(found), expected);
    return;
  }
  EXPECT_THAT(cluster, StatusIs(absl::StatusCode::kInvalidArgument,
                                ::testing::Eq(expected.substr(kRefused.size()))));
}

}  // namespace tessera::testing

#endif  // TESSERA_JOB_TESTING_CLUSTER_CASES_H_
