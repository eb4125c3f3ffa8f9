// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/names.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "checkpoint/manifest.h"
#include "files/new_file.h"
#include "job/environment/host.h"

namespace tessera::checkpoint::internal {
namespace {

constexpr absl::string_view kDataPrefix = "data-";
constexpr absl::string_view kMarkPrefix = ".writing-";
constexpr absl::string_view kStepPrefix = "step-";

bool is_number(absl::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isdigit(c); });
}

}  // namespace

std::string join_path(absl::string_view folder, absl::string_view name) {
  return absl::StrCat(folder, absl::EndsWith(folder, "/") ? "" : "/", name);
}

std::string last_part(absl::string_view path) {
  while (path.size() > 1 && absl::EndsWith(path, "/")) path.remove_suffix(1);
  return std::string(path.substr(path.rfind('/') + 1));
}

std::string new_save_id() { return random_token().substr(0, kSaveIdDigits); }

std::string data_file_name(int device, absl::string_view save_id) {
  return absl::StrCat(kDataPrefix, absl::Dec(device, absl::kZeroPad5), "-", save_id,
                      kSafetensorsSuffix);
}

std::string partial_manifest_name(absl::string_view save_id) {
  return absl::StrCat(kManifestName, ".", save_id, kPartialSuffix);
}

std::string mark_name(absl::string_view save_id) { return absl::StrCat(kMarkPrefix, save_id); }

std::string step_name(int64_t step) {
  return absl::StrCat(kStepPrefix, absl::Dec(step, absl::kZeroPad10));
}

std::optional<std::string> save_id_of(absl::string_view file_name) {
  const bool is_partial = absl::ConsumeSuffix(&file_name, kPartialSuffix);
  if (absl::ConsumePrefix(&file_name, kMarkPrefix)) {
    (void)absl::ConsumeSuffix(&file_name, kPartialSuffix);
    return is_save_id(file_name) ? std::optional<std::string>(file_name) : std::nullopt;
  }
  if (absl::ConsumePrefix(&file_name, kDataPrefix) &&
      absl::ConsumeSuffix(&file_name, kSafetensorsSuffix)) {
    const size_t dash = file_name.find('-');
    if (dash == absl::string_view::npos || !is_number(file_name.substr(0, dash))) {
      return std::nullopt;
    }
    file_name.remove_prefix(dash + 1);
    return is_save_id(file_name) ? std::optional<std::string>(file_name) : std::nullopt;
  }
  if (is_partial && absl::ConsumePrefix(&file_name, kManifestName) &&
      absl::ConsumePrefix(&file_name, ".") && is_save_id(file_name)) {
    return std::string(file_name);
  }
  return std::nullopt;
}

bool is_begun(absl::Span<const std::string> file_names) {
  return std::any_of(file_names.begin(), file_names.end(),
                     [](const std::string& name) { return save_id_of(name).has_value(); });
}

std::optional<int64_t> step_of(absl::string_view folder_name) {
  int64_t step = 0;
  if (!absl::ConsumePrefix(&folder_name, kStepPrefix) || !is_number(folder_name) ||
      !absl::SimpleAtoi(folder_name, &step)) {
    return std::nullopt;
  }
  return step;
}

bool is_real_folder(const std::string& path) {
  struct stat found = {};
  return lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

StatusOr<std::vector<std::string>> names_in(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(opendir(folder.c_str()), closedir);
  if (stream == nullptr) return files::file_error(errno, "cannot open folder", folder);
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* const entry = readdir(stream.get());
    if (entry == nullptr && errno != 0) {
      return files::file_error(errno, "cannot read folder", folder);
    }
    if (entry == nullptr) break;
    const absl::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace tessera::checkpoint::internal
