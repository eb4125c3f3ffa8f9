// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/leftovers.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "checkpoint/manifest.h"
#include "checkpoint/names.h"
#include "checkpoint/saver_mark.h"
#include "checkpoint/source.h"
#include "files/new_file.h"

namespace tessera::checkpoint::internal {
namespace {

bool has_manifest(const std::string& folder) {
  struct stat found = {};
  return lstat(join_path(folder, kManifestName).c_str(), &found) == 0 || errno != ENOENT;
}

// The files of saves in the folder whose savers have ended. A save that has become complete after
// the names were listed is among them: the caller looks for its manifest after this call.
std::vector<std::string> abandoned_files(const std::string& folder,
                                         const std::vector<std::string>& names) {
  std::map<std::string, bool> may_write;  // by save
  std::vector<std::string> result;
  for (const std::string& name : names) {
    const std::optional<std::string> save_id = save_id_of(name);
    if (!save_id.has_value()) continue;
    const auto [known, is_new] = may_write.try_emplace(*save_id, false);
    if (is_new) known->second = may_be_writing(folder, *save_id);
    if (!known->second) result.push_back(name);
  }
  return result;
}

std::optional<Leftover> leftover_of(const std::string& folder, const std::string& name) {
  const StatusOr<std::vector<std::string>> names = names_in(folder);
  if (!names.ok()) return std::nullopt;
  Leftover leftover;
  leftover.folder = folder;
  leftover.names = abandoned_files(folder, *names);
  if (!has_manifest(folder)) {
    const bool is_step = step_of(name).has_value() && names->empty();
    leftover.is_whole_folder = leftover.names.size() == names->size();
    if (leftover.names.empty() && !is_step) return std::nullopt;
    return leftover;
  }
  const StatusOr<Source> source = open_source(folder);
  if (!source.ok()) return std::nullopt;
  std::set<std::string> kept;
  for (const FileInfo& file : source->info->files) kept.insert(file.name);
  leftover.names.erase(
      std::remove_if(leftover.names.begin(), leftover.names.end(),
                     [&](const std::string& file) { return kept.count(file) > 0; }),
      leftover.names.end());
  if (leftover.names.empty()) return std::nullopt;
  return leftover;
}

Status remove_file(const std::string& path) {
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return files::file_error(errno, "cannot remove file", path);
}

}  // namespace

StatusOr<std::vector<Leftover>> find_leftovers(const std::string& root) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, names_in(root));
  std::vector<Leftover> result;
  for (const std::string& name : names) {
    const std::string folder = join_path(root, name);
    if (!is_real_folder(folder)) continue;
    std::optional<Leftover> leftover = leftover_of(folder, name);
    if (leftover.has_value()) result.push_back(*std::move(leftover));
  }
  return result;
}

Status remove_leftover(const Leftover& leftover) {
  // Marks go last: they tell what is left if this process ends in the middle.
  for (const bool is_mark : {false, true}) {
    for (const std::string& name : leftover.names) {
      if ((name[0] == '.') != is_mark) continue;
      TESSERA_RETURN_IF_ERROR(remove_file(join_path(leftover.folder, name)));
    }
  }
  if (!leftover.is_whole_folder || rmdir(leftover.folder.c_str()) == 0 || errno == ENOENT ||
      errno == ENOTEMPTY) {
    return absl::OkStatus();
  }
  return files::file_error(errno, "cannot remove folder", leftover.folder);
}

Status remove_checkpoint(const std::string& folder, Sync sync) {
  TESSERA_RETURN_IF_ERROR(remove_file(join_path(folder, kManifestName)));
  if (sync == Sync::kYes) TESSERA_RETURN_IF_ERROR(files::sync_folder(folder));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, names_in(folder));
  Leftover rest;
  rest.folder = folder;
  rest.names = abandoned_files(folder, names);
  rest.is_whole_folder = true;
  return has_manifest(folder) ? absl::OkStatus() : remove_leftover(rest);
}

}  // namespace tessera::checkpoint::internal
