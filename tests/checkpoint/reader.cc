// SPDX-License-Identifier: Apache-2.0
#include "tests/checkpoint/reader.h"

#include <filesystem>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpointer.h"
#include "checkpoint/info.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "files/array_files.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "tests/checkpoint/saved_values.h"
#include "tests/support/clients.h"
#include "tests/support/expect_error.h"
#include "tests/support/forked.h"
#include "tests/support/shared.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

// Complete in shared memory.
struct Found {
  static constexpr int kMost = 16;
  int count;
  int64_t steps[kMost];
  int64_t bases[kMost];

  Complete complete() const {
    Complete result;
    for (int i = 0; i < count; ++i) result[steps[i]] = bases[i];
    return result;
  }
};

StatusOr<int64_t> read_checkpoint(const Client& client, const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const checkpoint::Info info, checkpoint::read_info(path));
  TESSERA_RETURN_IF_ERROR(checkpoint::verify(path, 1));
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, mesh_of_all(client));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<DTensor> tensors,
                           checkpoint::restore(client, path, targets_on(mesh)));
  TESSERA_ASSIGN_OR_RETURN(const int64_t base, base_of(tensors));
  const auto said = info.metadata.find("base");
  TESSERA_REQUIRE(said != info.metadata.end() && said->second == absl::StrCat(base),
                  "the values of ", path, " have base ", base);
  return base;
}

// The steps of the folders, by their names.
std::set<int64_t> steps_of_folders(const std::string& root) {
  std::set<int64_t> steps;
  for (const fs::directory_entry& entry : fs::directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    int64_t step = 0;
    if (absl::StartsWith(name, "step-") && absl::SimpleAtoi(name.substr(5), &step)) {
      steps.insert(step);
    }
  }
  return steps;
}

Status find(const Client& client, const std::string& root, Found& found) {
  found.count = 0;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<checkpoint::Entry> entries, checkpoint::list(root));
  std::set<int64_t> listed;
  std::string newest;
  for (const checkpoint::Entry& entry : entries) {
    listed.insert(entry.step);
    if (absl::IsFailedPrecondition(entry.status)) {
      TESSERA_RETURN_IF_ERROR(expect_error(checkpoint::read_info(entry.path).status(),
                                           absl::StatusCode::kNotFound, {"manifest.json"}));
      continue;
    }
    TESSERA_RETURN_IF_ERROR(entry.status);
    TESSERA_ASSIGN_OR_RETURN(const int64_t base, read_checkpoint(client, entry.path));
    TESSERA_REQUIRE(found.count < Found::kMost);
    found.steps[found.count] = entry.step;
    found.bases[found.count++] = base;
    newest = entry.path;
  }
  TESSERA_REQUIRE(listed == steps_of_folders(root));
  const StatusOr<std::string> latest = checkpoint::latest(client, root);
  if (found.count == 0) return expect_error(latest.status(), absl::StatusCode::kNotFound);
  TESSERA_RETURN_IF_ERROR(latest.status());
  TESSERA_REQUIRE(*latest == newest, "latest is ", *latest);
  return absl::OkStatus();
}

// Every file is a manifest, or is named by one.
Status expect_nothing_left(const std::string& root) {
  for (const fs::directory_entry& folder : fs::directory_iterator(root)) {
    const std::string path = folder.path().string();
    TESSERA_REQUIRE(folder.is_directory(), path);
    TESSERA_ASSIGN_OR_RETURN(const checkpoint::Info info, checkpoint::read_info(path));
    std::set<std::string> names = {"manifest.json"};
    for (const checkpoint::FileInfo& file : info.files) names.insert(file.name);
    for (const fs::directory_entry& file : fs::directory_iterator(folder.path())) {
      TESSERA_REQUIRE(names.count(file.path().filename().string()) == 1, file.path().string(),
                      " is left");
    }
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<Complete> read_root(const std::string& root) {
  Shared<Found> found;
  TESSERA_RETURN_IF_ERROR(
      run_clients({}, [&](Client& client) { return find(client, root, *found); }));
  return found->complete();
}

Status clean_root(const std::string& root, const Complete& before) {
  return run_clients({}, [&](Client& client) -> Status {
    for (int time = 0; time < 2; ++time) {
      TESSERA_RETURN_IF_ERROR(checkpoint::Checkpointer::open(client, root).status());
      TESSERA_RETURN_IF_ERROR(expect_nothing_left(root));
      Found found;
      TESSERA_RETURN_IF_ERROR(find(client, root, found));
      TESSERA_REQUIRE(found.complete() == before, "open() changed complete checkpoints");
    }
    return absl::OkStatus();
  });
}

StatusOr<int64_t> read_file(const std::string& path) {
  Shared<int64_t> base;
  TESSERA_RETURN_IF_ERROR(run_clients({}, [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, mesh_of_all(client));
    if (absl::EndsWith(path, ".npy")) {
      TESSERA_ASSIGN_OR_RETURN(const DTensor tensor,
                               read_npy(client, path, Layout::parse(mesh, "[x, -]")));
      TESSERA_ASSIGN_OR_RETURN(*base, base_of(tensor));
      return absl::OkStatus();
    }
    TESSERA_ASSIGN_OR_RETURN(const std::vector<DTensor> tensors,
                             checkpoint::restore(client, path, targets_on(mesh)));
    TESSERA_ASSIGN_OR_RETURN(*base, base_of(tensors));
    return absl::OkStatus();
  }));
  return *base;
}

}  // namespace tessera::testing
