// SPDX-License-Identifier: Apache-2.0
//
// WaitReports: which waits it reports when, and with which text. The time is the test's.
#include "base/wait_reports.h"

#include <fcntl.h>
#include <unistd.h>

#include <future>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::tessera::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::Duration kUnit = absl::Seconds(10);

class WaitReportsTest : public ::testing::Test {
 protected:
  static WaitReports::Missing missing_client_1() { return {"missing client 1", {1}}; }
  // The reports that a look writes, so many seconds after the start.
  std::vector<std::string> look_at(double seconds) {
    texts_.clear();
    next_ = reports_.look(start_ + absl::Seconds(seconds));
    return texts_;
  }
  double next() const { return absl::ToDoubleSeconds(next_ - start_); }

  const absl::Time start_ = steady_now();
  absl::Time next_;
  std::vector<std::string> texts_;
  std::vector<int> missing_;
  WaitReports reports_{{.subject = "client 0",
                        .sink =
                            [this](const WaitReport& report) {
                              texts_.push_back(report.text);
                              missing_ = report.missing;
                            },
                        .unit = kUnit}};
};

TEST_F(WaitReportsTest, AWaitIsReportedAfter10And30SecondsAnd1And2And5MinutesAndEvery5) {
  const ReportedWait wait(&reports_, "create_mesh {x=2}", missing_client_1, start_);
  std::vector<double> reported;
  for (double at = 0; at <= 1500; at = next()) {
    if (!look_at(at).empty()) reported.push_back(at);
    ASSERT_GT(next(), at);
    ASSERT_LE(next(), at + 10);
  }
  EXPECT_THAT(reported, ElementsAre(10, 30, 60, 120, 300, 600, 900, 1200, 1500));
}

TEST_F(WaitReportsTest, TheTextNamesTheClientTheTimeTheOperationAndWhatIsMissing) {
  const ReportedWait wait(&reports_, "create_mesh {x=2}", missing_client_1, start_);
  EXPECT_THAT(look_at(9.9), IsEmpty());
  EXPECT_THAT(look_at(10.2), ElementsAre("client 0 has waited for 10.2 s in create_mesh {x=2}: "
                                         "missing client 1"));
  EXPECT_THAT(missing_, ElementsAre(1));
  EXPECT_THAT(look_at(150), ElementsAre("client 0 has waited for 2.5 min in create_mesh {x=2}: "
                                        "missing client 1"));
}

TEST_F(WaitReportsTest, WaitsOfOneOperationAreOneReport) {
  const ReportedWait first(&reports_, "connect", missing_client_1, start_);
  const ReportedWait second(&reports_, "connect", missing_client_1, start_ + absl::Seconds(5));
  EXPECT_THAT(look_at(10), ElementsAre("client 0 has waited for 10 s in connect: "
                                       "missing client 1"));
  EXPECT_THAT(look_at(16), IsEmpty());
}

TEST_F(WaitReportsTest, TheNextCallOfAnOperationIsAnotherWait) {
  {
    const ReportedWait wait(&reports_, "connect", missing_client_1, start_);
    EXPECT_EQ(look_at(10).size(), 1);
  }
  const ReportedWait wait(&reports_, "connect", missing_client_1, start_ + absl::Seconds(11));
  EXPECT_THAT(look_at(20), IsEmpty());
  EXPECT_EQ(next(), 21);
  EXPECT_EQ(look_at(21).size(), 1);
}

TEST_F(WaitReportsTest, AWaitThatEndsWhileItsTextIsMadeIsNotReported) {
  std::optional<ReportedWait> wait;
  const auto missing = [&]() -> WaitReports::Missing {
    wait.reset();
    return {"missing client 1", {1}};
  };
  wait.emplace(&reports_, "connect", missing, start_);
  EXPECT_THAT(look_at(10), IsEmpty());
}

TEST_F(WaitReportsTest, ASourceListsWaitsUntilItIsTakenAway) {
  bool is_over = false;
  reports_.set_source([&]() -> std::vector<WaitReports::Wait> {
    return {{"barrier \"go\"", start_, [&]() -> std::optional<WaitReports::Missing> {
               if (is_over) return std::nullopt;
               return WaitReports::Missing{"", {}};
             }}};
  });
  EXPECT_THAT(look_at(10), ElementsAre("client 0 has waited for 10 s in barrier \"go\""));
  is_over = true;
  EXPECT_THAT(look_at(30), IsEmpty());
  is_over = false;
  reports_.set_source(nullptr);
  EXPECT_THAT(look_at(60), IsEmpty());
}

TEST_F(WaitReportsTest, TheListenerIsToldWhatTheProcessWaitsIn) {
  std::vector<std::string> told;
  reports_.set_listener([&](absl::string_view operation, bool is_waiting) {
    told.push_back(absl::StrCat(operation, is_waiting ? " waits" : " has ended"));
  });
  {
    const ReportedWait outer(&reports_, "connect", missing_client_1);
    const ReportedWait inner(&reports_, "recv", missing_client_1);
  }
  EXPECT_THAT(told,
              ElementsAre("connect waits", "recv waits", "connect waits", "connect has ended"));
}

TEST_F(WaitReportsTest, AMissedReportIsNotMadeUpFor) {
  const ReportedWait wait(&reports_, "connect", missing_client_1, start_);
  EXPECT_EQ(look_at(61).size(), 1);
  EXPECT_THAT(look_at(62), IsEmpty());
  EXPECT_EQ(look_at(120).size(), 1);
}

TEST(WaitReportsThreadTest, ReportsAreMadeByItsThread) {
  std::promise<bool> reported;
  WaitReports* self = nullptr;
  WaitReports reports({.subject = "client 0",
                       .sink =
                           [&, is_first = true](const WaitReport&) mutable {
                             if (is_first) reported.set_value(self->is_current());
                             is_first = false;
                           },
                       .unit = absl::Milliseconds(1)});
  self = &reports;
  ASSERT_THAT(reports.start(), IsOk());
  const ReportedWait wait(&reports, "connect", [] { return WaitReports::Missing(); });
  EXPECT_TRUE(reported.get_future().get());
  EXPECT_FALSE(reports.is_current());
}

TEST(WaitReportsThreadTest, WithoutASinkALineGoesToStderr) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const int saved = dup(STDERR_FILENO);
  ASSERT_EQ(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
  const absl::Time start = steady_now();
  WaitReports reports({.subject = "client 0"});
  {
    const ReportedWait wait(
        &reports, "connect", [] { return WaitReports::Missing(); }, start);
    reports.look(start + absl::Seconds(10));
  }
  dup2(saved, STDERR_FILENO);
  close(saved);
  close(ends[1]);
  char text[200];
  const ssize_t size = read(ends[0], text, sizeof text);
  close(ends[0]);
  ASSERT_GT(size, 0);
  EXPECT_EQ(std::string(text, size), "tessera: client 0 has waited for 10 s in connect\n");
}

TEST_F(WaitReportsTest, AWaitThatNeedsNoReportHasNone) {
  bool is_normal = true;
  const auto missing = [&]() -> std::optional<WaitReports::Missing> {
    if (is_normal) return std::nullopt;
    return missing_client_1();
  };
  const ReportedWait wait(&reports_, "join", missing, start_);
  EXPECT_THAT(look_at(10), IsEmpty());
  is_normal = false;
  EXPECT_EQ(look_at(30).size(), 1);
}

TEST(WaitReportsThreadTest, WithoutReportsAWaitIsNothing) {
  const ReportedWait wait(nullptr, "connect", nullptr);
}

}  // namespace
}  // namespace tessera
