// SPDX-License-Identifier: Apache-2.0
//
// Savers that are killed: tests/facts/checkpoint_kills.md. A root holds step 100, complete, written
// by four clients; a job saves step 200, saves step 100 again, or writes over a file, and gets
// SIGKILL at a call to the system (fault_library.cc). Rows name the call; sweeps take the calls of
// an undisturbed run in turn, before and after each.
//
// Invariants after each kill:
//   1. a reader finds complete checkpoints with the values of one save each: what was there before,
//      or that and the new one;
//   2. a save of which a client was told OK is there;
//   3. a file that is written over is the old one or the new one;
//   4. the next open() of the root leaves no file that a manifest does not name.
//
// CI takes a sample of the calls, which TESSERA_TEST_SEED repeats; TESSERA_CHECKPOINT_POINTS=all
// (tools/soak checkpoints) takes all. $TESSERA_CHECKPOINT_LATE_MS: how soon survivors must learn of
// a loss. CI gives more, because other tests use the cores.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <ostream>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "checkpoint/checkpointer.h"
#include "dtensor/client.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/checkpoint/reader.h"
#include "tests/checkpoint/saver_run.h"
#include "tests/support/clients.h"
#include "tests/support/folder.h"
#include "tests/support/matchers.h"
#include "tests/support/seed.h"

namespace tessera::testing {
namespace {

using ::testing::AnyOfArray;
using ::testing::HasSubstr;

constexpr int64_t kPointsInCi = 2;  // of each sweep

// The complete checkpoints of the states that a save passes, in order.
using States = std::vector<Complete>;

const Complete kBefore = {{100, 100}};
const Complete kBoth = {{100, 100}, {200, 200}};
const States kOfSave = {kBefore, kBoth};
const States kOfOverwrite = {kBefore, {{100, 101}}};

bool has_file(const Folder& folder, const std::string& pattern) {
  const std::regex regex(pattern);
  for (const std::string& path : folder.files()) {
    if (std::regex_search(path, regex)) return true;
  }
  return false;
}

class KillTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    prepared_ = new Folder;
    const SaverRun run = run_saver(
        {.verb = "save", .path = prepared_->path(), .step = 100, .base = 100, .num_clients = 4},
        prepared_->path());
    ASSERT_EQ(run.exit_code, 0) << run.error_output;
  }
  static void TearDownTestSuite() { delete std::exchange(prepared_, nullptr); }

  void SetUp() override { root_.copy(*prepared_); }

  // A reader finds one of the states, not before `acknowledged` where a client was told OK; then
  // open() cleans up.
  void expect_readable(const States& states, size_t acknowledged, const SaverRun& run) {
    const StatusOr<Complete> found = read_root(root_.path());
    ASSERT_THAT(found, IsOkAndHolds(AnyOfArray(states)));
    if (run.is_acknowledged()) {
      EXPECT_THAT(*found,
                  AnyOfArray(states.begin() + static_cast<int64_t>(acknowledged), states.end()));
    }
    EXPECT_THAT(clean_root(root_.path(), *found), IsOk());
  }

  Folder root_;
  static Folder* prepared_;
};
Folder* KillTest::prepared_ = nullptr;

// Kills at points of the calls of an undisturbed run: before call 0, after call 0, before call 1,
// ... `reset` makes the folder as it was, `start(fault)` runs the program, `check(run)` judges the
// folder.
template <class Reset, class Start, class Check>
void sweep(const Reset& reset, const Start& start, const Check& check) {
  const uint64_t seed = test_seed();
  reset();
  const SaverRun clean = start(std::nullopt);
  ASSERT_EQ(clean.exit_code, 0) << clean.error_output;
  ASSERT_FALSE(clean.calls.empty());
  for (const int64_t point :
       sample_of_points(2 * static_cast<int64_t>(clean.calls.size()), kPointsInCi, seed)) {
    const Call& call = clean.calls[static_cast<size_t>(point / 2)];
    const std::string who = call.client < 0 ? "kill" : "kill_job";
    const Fault fault = {.client = call.client,
                         .n = call.number,
                         .action = who + (point % 2 == 0 ? "_before" : "_after")};
    SCOPED_TRACE(absl::StrCat(fault.to_string(), ", ", call.name, " ", call.path));
    reset();
    const SaverRun run = start(fault);
    EXPECT_TRUE(run.was_killed) << run.error_output;
    check(run);
  }
}

template <class Reset, class Check>
void sweep_saver(const SaverJob& job, const std::string& folder, const Reset& reset,
                 const Check& check) {
  sweep(
      reset, [&](const std::optional<Fault>& fault) { return run_saver(job, folder, fault); },
      check);
}

struct Sweep {
  const char* name;
  const char* verb;
  int64_t step;
  int64_t base;
  int num_clients;
  States states;
  size_t acknowledged;  // the first state in which the save is complete
};
std::ostream& operator<<(std::ostream& out, const Sweep& row) { return out << row.name; }

class SweepTest : public KillTest, public ::testing::WithParamInterface<Sweep> {};

TEST_P(SweepTest, KilledAtEachCall) {
  const Sweep& row = GetParam();
  sweep_saver(
      {row.verb, root_.path(), row.step, row.base, row.num_clients}, root_.path(),
      [&] { root_.copy(*prepared_); },
      [&](const SaverRun& run) { expect_readable(row.states, row.acknowledged, run); });
}

INSTANTIATE_TEST_SUITE_P(
    Savers, SweepTest,
    ::testing::Values(Sweep{"OneClient", "save", 200, 200, 1, kOfSave, 1},
                      Sweep{"TwoClients", "save", 200, 200, 2, kOfSave, 1},
                      Sweep{"Overwrite", "overwrite", 100, 101, 1, kOfOverwrite, 1},
                      Sweep{"OverwriteByTwo", "overwrite", 100, 101, 2, kOfOverwrite, 1},
                      Sweep{"TwoPending",
                            "two_pending",
                            200,
                            200,
                            1,
                            {kBefore, kBoth, {{100, 100}, {200, 200}, {300, 300}}},
                            2},
                      Sweep{"Retention", "retain", 200, 200, 1, {kBefore, kBoth, {{200, 200}}}, 1}),
    [](const auto& info) { return std::string(info.param.name); });

// A file that is written over, in a folder of its own.
class FileTest : public ::testing::TestWithParam<const char*> {};

TEST_P(FileTest, IsTheOldOneOrTheNewOne) {
  const std::string verb = GetParam();
  const std::string name = verb == "write_npy" ? "/x.npy" : "/x.safetensors";
  const Folder prepared;
  ASSERT_EQ(run_saver({.verb = verb, .path = prepared.path() + name, .base = 100}, prepared.path())
                .exit_code,
            0);
  Folder folder;
  for (const int num_clients : {1, 2}) {
    const std::string path = folder.path() + name;
    sweep_saver(
        {.verb = verb, .path = path, .base = 101, .num_clients = num_clients}, folder.path(),
        [&] { folder.copy(prepared); },
        [&](const SaverRun& run) {
          const StatusOr<int64_t> base = read_file(path);
          EXPECT_THAT(base, IsOkAndHolds(AnyOfArray({100, 101})));
          if (run.is_acknowledged()) {
            EXPECT_THAT(base, IsOkAndHolds(101));
          }
        });
  }
}

INSTANTIATE_TEST_SUITE_P(InWriteNpyAndSafetensors, FileTest,
                         ::testing::Values("write_npy", "write_safetensors"),
                         [](const auto& info) { return std::string(info.param); });

// Rows of tests/facts/checkpoint_kills.md: four clients, unless the state needs one.
struct KillRow {
  const char* name;
  const char* verb;
  int num_clients;
  Fault fault;
  States expected;
  const char* there = "";  // a path that exists after the kill, as a regular expression
  const char* absent = "no such path";  // a path that does not
};
std::ostream& operator<<(std::ostream& out, const KillRow& row) { return out << row.name; }

constexpr char kData200[] = "step-0000000200/data.*\\.safetensors$";

const KillRow kKillRows[] = {
    {"before_anything",
     "save",
     4,
     {0, "mkdir", "step-0000000200", 1, "kill_job_before"},
     {kBefore},
     "",
     "step-0000000200"},
    {"after_mkdir",
     "save",
     4,
     {0, "mkdir", "step-0000000200", 1, "kill_job_after"},
     {kBefore},
     "step-0000000200$",
     "step-0000000200/"},
    {"after_mkdir_with_an_empty_mark",
     "save",
     1,
     {0, "write", "step-0000000200/.writing", 1, "kill_job_before"},
     {kBefore},
     "step-0000000200/\\.writing"},
    {"in_the_data",
     "save",
     1,
     {0, "write", ".safetensors.partial", 1, "kill_job_after"},
     {kBefore},
     "step-0000000200/data.*\\.partial$",
     kData200},
    {"data_synced",
     "save",
     1,
     {0, "rename", ".safetensors.partial", 1, "kill_job_before"},
     {kBefore},
     "step-0000000200/data.*\\.partial$",
     kData200},
    {"some_renamed",
     "save",
     4,
     {2, "rename", ".safetensors.partial", 1, "kill_job_after"},
     {kBefore},
     kData200,
     "step-0000000200/manifest\\.json$"},
    {"all_renamed",
     "save",
     4,
     {0, "create", "step-0000000200/manifest", 1, "kill_job_before"},
     {kBefore},
     kData200,
     "step-0000000200/manifest"},
    {"in_the_manifest_empty",
     "save",
     4,
     {0, "write", "step-0000000200/manifest", 1, "kill_job_before"},
     {kBefore},
     "step-0000000200/manifest.*\\.partial$",
     "step-0000000200/manifest\\.json$"},
    {"in_the_manifest_whole",
     "save",
     4,
     {0, "rename", "step-0000000200/manifest", 1, "kill_job_before"},
     {kBefore},
     "step-0000000200/manifest.*\\.partial$",
     "step-0000000200/manifest\\.json$"},
    {"manifest_renamed",
     "save",
     4,
     {0, "rename", "step-0000000200/manifest", 1, "kill_job_after"},
     {kBoth}},
    {"before_the_verdict",
     "save",
     4,
     {0, "rename", "step-0000000200/manifest", 1, "kill_after"},
     {kBoth}},
    {"one_client_in_the_data",
     "save",
     4,
     {2, "write", ".safetensors.partial", 1, "kill_before"},
     {kBefore},
     "",
     "step-0000000200/manifest\\.json$"},
    {"client_0_before_the_manifest",
     "save",
     4,
     {0, "rename", "step-0000000200/manifest", 1, "kill_before"},
     {kBefore},
     "",
     "step-0000000200/manifest\\.json$"},
    {"overwrite_in_the_data",
     "overwrite",
     4,
     {2, "write", ".safetensors.partial", 1, "kill_job_after"},
     {kBefore}},
    {"overwrite_renamed",
     "overwrite",
     4,
     {0, "rename", "step-0000000100/manifest", 1, "kill_job_after"},
     {kOfOverwrite[1]}},
    {"retention_manifest_gone",
     "retain",
     4,
     {0, "unlink", "step-0000000100/manifest.json", 1, "kill_job_after"},
     {{{200, 200}}},
     "step-0000000100/data.*\\.safetensors$",
     "step-0000000100/manifest\\.json$"},
    {"retention_half_gone",
     "retain",
     4,
     {0, "unlink", "step-0000000100/data", 2, "kill_job_after"},
     {{{200, 200}}},
     "step-0000000100/data.*\\.safetensors$",
     "step-0000000100/manifest\\.json$"},
};

class KillRowTest : public KillTest, public ::testing::WithParamInterface<KillRow> {
 protected:
  // The others have the same error, which names the client that was killed, and have it soon.
  static void expect_loss(const SaverRun& run, const KillRow& row) {
    int64_t late_ms = 20'000;
    const char* const text = std::getenv("TESSERA_CHECKPOINT_LATE_MS");
    if (text != nullptr) {
      EXPECT_TRUE(absl::SimpleAtoi(text, &late_ms)) << text;
    }
    EXPECT_EQ(static_cast<int>(run.first.size()), row.num_clients - 1);
    for (const auto& [client, returned] : run.first) {
      EXPECT_NE(client, row.fault.client);
      EXPECT_EQ(returned.status, run.first.begin()->second.status) << "client " << client;
      EXPECT_THAT(returned.status, StatusIs(absl::StatusCode::kUnavailable,
                                            HasSubstr(absl::StrCat("client ", row.fault.client))));
      EXPECT_LE(returned.took, absl::Milliseconds(late_ms)) << "client " << client;
    }
  }
};

TEST_P(KillRowTest, IsFoundAsTheRowSays) {
  const KillRow& row = GetParam();
  const bool is_overwrite = std::string(row.verb) == "overwrite";
  const SaverRun run = run_saver({.verb = row.verb,
                                  .path = root_.path(),
                                  .step = is_overwrite ? 100 : 200,
                                  .base = is_overwrite ? 101 : 200,
                                  .num_clients = row.num_clients},
                                 root_.path(), row.fault);
  ASSERT_TRUE(run.fault().has_value()) << run.error_output;
  const bool is_of_job = absl::StartsWith(row.fault.action, "kill_job");
  EXPECT_EQ(run.was_killed, is_of_job) << run.error_output;
  if (!is_of_job) expect_loss(run, row);
  EXPECT_TRUE(has_file(root_, row.there)) << row.there;
  EXPECT_FALSE(has_file(root_, row.absent)) << row.absent;
  expect_readable(row.expected, 0, run);
}

INSTANTIATE_TEST_SUITE_P(Rows, KillRowTest, ::testing::ValuesIn(kKillRows),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_F(KillTest, PendingDroppedLeavesOneOrBoth) {
  const SaverRun run = run_saver({.verb = "dropped", .path = root_.path()}, root_.path());
  EXPECT_TRUE(run.first.empty());
  expect_readable(kOfSave, 0, run);
}

TEST_F(KillTest, InOpenNothingCompleteIsLost) {
  const Fault in_the_data = {0, "write", ".safetensors.partial", 1, "kill_job_after"};
  ASSERT_TRUE(
      run_saver({.verb = "save", .path = root_.path(), .num_clients = 2}, root_.path(), in_the_data)
          .was_killed);
  Folder left;
  left.copy(root_);
  sweep_saver(
      {.verb = "open", .path = root_.path()}, root_.path(), [&] { root_.copy(left); },
      [&](const SaverRun& run) { expect_readable({kBefore}, 0, run); });
}

TEST_F(KillTest, InConvertTheTargetIsWholeOrMissing) {
  Folder target;
  const std::string file = target.path() + "/model.safetensors";
  const std::vector<std::string> before = root_.files();
  sweep([&] { target.clear(); },
        [&](const std::optional<Fault>& fault) {
          return run_program({"tools/ckpt_tool/tessera_ckpt", "convert",
                              root_.path() + "/step-0000000100", file, "--to", "safetensors"},
                             target.path(), fault);
        },
        [&](const SaverRun& run) {
          const bool is_renamed =
              run.calls.back().name == "rename" && run.calls.back().fault == "kill_after";
          const std::vector<std::string> files = target.files();
          if (std::count(files.begin(), files.end(), "model.safetensors") > 0) {
            EXPECT_THAT(read_file(file), IsOkAndHolds(100));
          } else {
            EXPECT_FALSE(is_renamed);
          }
          EXPECT_EQ(root_.files(), before);
          EXPECT_THAT(read_root(root_.path()), IsOkAndHolds(kBefore));
        });
}

TEST_F(KillTest, CleanTwiceAfterSeveralKills) {
  for (const Fault& fault : {Fault{1, "write", ".safetensors.partial", 1, "kill_job_after"},
                             Fault{0, "write", "/manifest", 1, "kill_job_after"},
                             Fault{0, "rename", "/manifest", 1, "kill_job_before"}}) {
    for (const char* const verb : {"save", "overwrite"}) {
      const SaverRun run = run_saver(
          {.verb = verb, .path = root_.path(), .step = *verb == 's' ? 200 : 100, .num_clients = 2},
          root_.path(), fault);
      EXPECT_TRUE(run.was_killed) << fault << run.error_output;
    }
  }
  EXPECT_TRUE(has_file(root_, "partial$"));
  EXPECT_THAT(read_root(root_.path()), IsOkAndHolds(kBefore));
  EXPECT_THAT(clean_root(root_.path(), kBefore), IsOk());
}

TEST_F(KillTest, CleanTwiceLeavesASaverThatLives) {
  const PausedSaver saver({.verb = "save", .path = root_.path()}, root_.path(),
                          {0, "write", ".safetensors.partial", 1});
  const std::vector<std::string> before = root_.files();
  for (int time = 0; time < 2; ++time) {
    EXPECT_THAT(run_clients({},
                            [&](Client& client) {
                              return checkpoint::Checkpointer::open(client, root_.path()).status();
                            }),
                IsOk());
    EXPECT_EQ(root_.files(), before);
  }
}

}  // namespace
}  // namespace tessera::testing
