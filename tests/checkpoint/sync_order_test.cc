// SPDX-License-Identifier: Apache-2.0
//
// The order of writes, syncs and renames of a save, from the log of the fault library: what makes a
// checkpoint survive a power cut, which a test cannot cause.
//
//   write the data -> fsync it -> rename it -> fsync the folder -> rename the manifest
//     -> fsync the folder -> remove what is old
#include <cstdint>
#include <filesystem>
#include <ostream>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/checkpoint/saver_run.h"
#include "tests/support/folder.h"

namespace tessera::testing {
namespace {

// The calls of one run, by their places in the log.
class Log {
 public:
  explicit Log(std::vector<Call> calls) : calls_(std::move(calls)) {}

  // The places of calls that succeeded, by kind and a regular expression of the path; both kinds of
  // sync are "fsync". A rename is found by its new path.
  std::vector<int> places(const std::string& name, const std::string& path) const {
    const std::regex regex(path);
    std::vector<int> found;
    for (size_t i = 0; i < calls_.size(); ++i) {
      const Call& call = calls_[i];
      const std::string kind = call.name == "fdatasync" ? "fsync" : call.name;
      if (kind == name && call.fault == "-" &&
          std::regex_match(name == "rename" ? call.other : call.path, regex)) {
        found.push_back(static_cast<int>(i));
      }
    }
    return found;
  }
  // The only one, or the first of several; -1 without one, which is a failure.
  int first(const std::string& name, const std::string& path) const {
    const std::vector<int> found = places(name, path);
    EXPECT_FALSE(found.empty()) << name << " " << path << "\n" << to_string();
    return found.empty() ? -1 : found.front();
  }
  // Whether there is such a call after one place and before another.
  bool is_between(int after, const std::string& name, const std::string& path, int before) const {
    for (const int place : places(name, path)) {
      if (place > after && place < before) return true;
    }
    return false;
  }

  const Call& at(int place) const { return calls_[static_cast<size_t>(place)]; }
  int end() const { return static_cast<int>(calls_.size()); }
  std::string to_string() const {
    std::ostringstream text;
    for (const Call& call : calls_) text << call << "\n";
    return text.str();
  }

 private:
  const std::vector<Call> calls_;
};

// A path as a regular expression.
std::string exactly(const std::string& path) {
  return std::regex_replace(path, std::regex("[.]"), "\\.");
}

// The contents of the file that was renamed at this place were on the disk before, and the folder
// is synced after it, before the other place.
void expect_durable_rename(const Log& log, int place, const std::string& folder, int before) {
  const std::string partial = exactly(log.at(place).path);
  const std::vector<int> writes = log.places("write", partial);
  ASSERT_FALSE(writes.empty()) << log.at(place) << "\n" << log.to_string();
  EXPECT_LT(writes.back(), place) << log.at(place);
  EXPECT_TRUE(log.is_between(writes.back(), "fsync", partial, place)) << log.at(place) << "\n"
                                                                      << log.to_string();
  EXPECT_TRUE(log.is_between(place, "fsync", folder, before)) << log.at(place) << "\n"
                                                              << log.to_string();
}

class SyncOrderTest : public ::testing::Test {
 protected:
  Log run(const SaverJob& job) {
    const SaverRun run = run_saver(job, root_.path());
    EXPECT_EQ(run.exit_code, 0) << run.error_output;
    return Log(run.calls);
  }
  void save_step_100() {
    run({.verb = "save", .path = root_.path(), .step = 100, .base = 100, .num_clients = 2});
  }

  Folder root_;
};

constexpr char kStep100[] = "step-0000000100";
constexpr char kStep200[] = "step-0000000200";
constexpr char kData[] = "/data-.*\\.safetensors";
constexpr char kManifest[] = "/manifest\\.json";

TEST_F(SyncOrderTest, PowerCutAfterReturnFindsAllSynced) {
  save_step_100();
  const Log log = run({.verb = "save", .path = root_.path(), .num_clients = 2});
  const int manifest = log.first("rename", absl::StrCat(kStep200, kManifest));
  ASSERT_GE(manifest, 0);
  const std::vector<int> data = log.places("rename", absl::StrCat(kStep200, kData));
  EXPECT_EQ(data.size(), 2u) << log.to_string();
  for (const int place : data) expect_durable_rename(log, place, kStep200, manifest);
  expect_durable_rename(log, manifest, kStep200, log.end());
  EXPECT_TRUE(log.is_between(log.first("mkdir", kStep200), "fsync", "\\.", log.end()))
      << log.to_string();
}

TEST_F(SyncOrderTest, PowerCutAfterReturnFindsNewFolders) {
  const Log log = run({.verb = "save", .path = root_.path() + "/a/b"});
  const std::vector<int> folders = log.places("mkdir", ".*");
  EXPECT_EQ(folders.size(), 3u) << log.to_string();
  for (const int place : folders) {
    const std::string parent = std::filesystem::path(log.at(place).path).parent_path().string();
    EXPECT_TRUE(log.is_between(place, "fsync", parent.empty() ? "\\." : exactly(parent), log.end()))
        << log.at(place) << "\n"
        << log.to_string();
  }
}

// Until the name of the new manifest is on the disk, the old files stay.
TEST_F(SyncOrderTest, PowerCutBeforeReturnFindsTheOldFiles) {
  save_step_100();
  const Log log =
      run({.verb = "overwrite", .path = root_.path(), .step = 100, .base = 101, .num_clients = 2});
  const int manifest = log.first("rename", absl::StrCat(kStep100, kManifest));
  ASSERT_GE(manifest, 0);
  const std::vector<int> data = log.places("rename", absl::StrCat(kStep100, kData));
  EXPECT_EQ(data.size(), 2u) << log.to_string();
  for (const int place : data) expect_durable_rename(log, place, kStep100, manifest);
  expect_durable_rename(log, manifest, kStep100, log.end());
  const std::vector<int> removed = log.places("unlink", absl::StrCat(kStep100, kData));
  EXPECT_FALSE(removed.empty()) << log.to_string();
  for (const int place : removed) {
    EXPECT_TRUE(log.is_between(manifest, "fsync", kStep100, place)) << log.at(place) << "\n"
                                                                    << log.to_string();
  }
}

TEST_F(SyncOrderTest, RetentionRemovesTheManifestFirst) {
  save_step_100();
  const Log log = run({.verb = "retain", .path = root_.path(), .num_clients = 2});
  const int new_manifest = log.first("rename", absl::StrCat(kStep200, kManifest));
  const int old_manifest = log.first("unlink", absl::StrCat(kStep100, kManifest));
  EXPECT_TRUE(log.is_between(new_manifest, "fsync", kStep200, old_manifest)) << log.to_string();
  const std::vector<int> data = log.places("unlink", absl::StrCat(kStep100, kData));
  EXPECT_FALSE(data.empty()) << log.to_string();
  for (const int place : data) {
    EXPECT_TRUE(log.is_between(old_manifest, "fsync", kStep100, place)) << log.at(place) << "\n"
                                                                        << log.to_string();
  }
}

TEST_F(SyncOrderTest, AFileIsSyncedBeforeItHasItsName) {
  for (const char* const verb : {"write_npy", "write_safetensors"}) {
    const Log log =
        run({.verb = verb, .path = root_.path() + "/x.npy", .base = 100, .num_clients = 1});
    const int renamed = log.first("rename", "x\\.npy");
    ASSERT_GE(renamed, 0);
    expect_durable_rename(log, renamed, "\\.", log.end());
  }
}

}  // namespace
}  // namespace tessera::testing
