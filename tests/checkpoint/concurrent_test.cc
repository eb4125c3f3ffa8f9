// SPDX-License-Identifier: Apache-2.0
//
// A checkpoint that is read while it is overwritten, and two jobs that save to one path. The jobs
// are forked processes of one client each.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/options.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "mesh/mesh.h"
#include "tests/checkpoint/reader.h"
#include "tests/checkpoint/saved_values.h"
#include "tests/support/clients.h"
#include "tests/support/folder.h"
#include "tests/support/forked.h"
#include "tests/support/gate.h"
#include "tests/support/matchers.h"
#include "tests/support/shared.h"

namespace tessera::testing {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(90);
constexpr int kRounds = 10;

Status save_base(const Client& client, const Mesh& mesh, const std::string& path, int64_t step,
                 int64_t base, bool overwrite) {
  return checkpoint::save(
      client, path, tensors_of(mesh, base),
      {.metadata = {{"base", absl::StrCat(base)}}, .step = step, .overwrite = overwrite});
}

// Two jobs at the same time; `body` gets the number of its job.
void run_two_jobs(const std::function<Status(Client& client, int job)>& body) {
  const std::vector<Status> ends = run_forked(2, kDeadline, [&](int job) {
    return run_clients({.deadline = kDeadline}, [&](Client& client) { return body(client, job); });
  });
  for (const Status& end : ends) EXPECT_THAT(end, IsOk());
}

// The saver overwrites once for each time that the reader asks, while the reader reads again and
// again: no read meets two overwrites.
TEST(ConcurrentTest, AReaderDuringSavesFindsOldOrNewValues) {
  const Folder root;
  const std::string path = step_path(root.path(), 100);
  Gate first_is_there;
  Gate next_is_wanted;
  const auto save = [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, mesh_of_all(client));
    TESSERA_RETURN_IF_ERROR(save_base(client, mesh, path, 100, 0, false));
    first_is_there.open();
    for (int round = 1; round <= kRounds; ++round) {
      TESSERA_RETURN_IF_ERROR(next_is_wanted.wait());
      TESSERA_RETURN_IF_ERROR(save_base(client, mesh, path, 100, round, true));
    }
    return absl::OkStatus();
  };
  const auto read = [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, mesh_of_all(client));
    TESSERA_RETURN_IF_ERROR(first_is_there.wait());
    for (int round = 1; round <= kRounds; ++round) {
      next_is_wanted.open();
      int64_t base = round - 1;
      while (base != round) {
        TESSERA_ASSIGN_OR_RETURN(const std::string latest, checkpoint::latest(client, root.path()));
        TESSERA_REQUIRE(latest == path, latest);
        TESSERA_RETURN_IF_ERROR(checkpoint::read_info(latest).status());
        TESSERA_RETURN_IF_ERROR(checkpoint::verify(latest, 1));
        TESSERA_ASSIGN_OR_RETURN(const std::vector<DTensor> tensors,
                                 checkpoint::restore(client, latest, targets_on(mesh)));
        TESSERA_ASSIGN_OR_RETURN(base, base_of(tensors));
        TESSERA_REQUIRE(base == round || base == round - 1, "base ", base, " in round ", round);
      }
    }
    return absl::OkStatus();
  };
  run_two_jobs([&](Client& client, int job) -> Status {
    if (job == 0) return save(client);
    const Status status = read(client);
    if (!status.ok()) next_is_wanted.open(kRounds);  // the saver ends too
    return status;
  });
}

// The codes that save() returned to each job, by round.
struct Codes {
  int of[2][kRounds];
};

// Both jobs save to the same path in each round.
void save_in_two_jobs(const std::string& root, bool overwrite, Codes& codes) {
  Gate ready[2];
  run_two_jobs([&](Client& client, int job) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, mesh_of_all(client));
    for (int round = 0; round < kRounds; ++round) {
      ready[1 - job].open();
      TESSERA_RETURN_IF_ERROR(ready[job].wait());
      const Status status =
          save_base(client, mesh, step_path(root, round), round, 1000 * (job + 1), overwrite);
      codes.of[job][round] = static_cast<int>(status.code());
      if (!absl::IsAlreadyExists(status)) TESSERA_RETURN_IF_ERROR(status);
    }
    return absl::OkStatus();
  });
}

TEST(ConcurrentTest, OneOfTwoSaversWins) {
  const Folder root;
  Shared<Codes> codes;
  save_in_two_jobs(root.path(), false, *codes);
  Complete expected;
  for (int round = 0; round < kRounds; ++round) {
    const bool first_won = codes->of[0][round] == 0;
    EXPECT_NE(first_won, codes->of[1][round] == 0) << "round " << round;
    expected[round] = first_won ? 1000 : 2000;
  }
  EXPECT_THAT(read_root(root.path()), IsOkAndHolds(expected));
  EXPECT_THAT(clean_root(root.path(), expected), IsOk());
}

TEST(ConcurrentTest, TwoOverwritesLeaveOneOfThemWhole) {
  const Folder root;
  Shared<Codes> codes;
  save_in_two_jobs(root.path(), true, *codes);
  TESSERA_ASSERT_OK_AND_ASSIGN(const Complete found, read_root(root.path()));
  ASSERT_EQ(static_cast<int>(found.size()), kRounds);
  for (int round = 0; round < kRounds; ++round) {
    const int64_t base = found.at(round);
    ASSERT_TRUE(base == 1000 || base == 2000) << "round " << round;
    EXPECT_EQ(codes->of[base / 1000 - 1][round], 0) << "round " << round;
  }
  EXPECT_THAT(clean_root(root.path(), found), IsOk());
}

}  // namespace
}  // namespace tessera::testing
