// SPDX-License-Identifier: Apache-2.0
#include "base/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace tessera {
namespace {

// The words of a file; none where it cannot be read.
std::vector<std::string> words_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> words;
  std::string word;
  while (file >> word) words.push_back(word);
  return words;
}

// The number at the start of a file; none where there is none ("max").
std::optional<int64_t> number_in(const std::string& path) {
  const std::vector<std::string> words = words_of(path);
  int64_t number;
  if (words.empty() || !absl::SimpleAtoi(words[0], &number)) return std::nullopt;
  return number;
}

// The number behind the word `name`; 0 where it is missing.
uint64_t number_after(const std::vector<std::string>& words, absl::string_view name) {
  const auto at = std::find(words.begin(), words.end(), name);
  uint64_t number;
  if (at == words.end() || at + 1 == words.end() || !absl::SimpleAtoi(*(at + 1), &number)) return 0;
  return number;
}

// The folders of the control groups that hold this process, each one below the next. A container
// may see its own group as the root, whatever the path says: folders that are not there do no harm.
std::vector<std::string> groups_of(const MachineFiles& files, absl::string_view controller) {
  std::vector<std::string> folders;
  for (const std::string& line : words_of(files.membership)) {
    // "4:cpu,cpuacct:/path" of version 1, "0::/path" of version 2.
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    std::vector<std::string> roots;
    if (parts[1].empty()) {
      roots = {files.cgroups, absl::StrCat(files.cgroups, "/unified")};
    } else if (std::find(controllers.begin(), controllers.end(), controller) != controllers.end()) {
      roots = {absl::StrCat(files.cgroups, "/", parts[1]),
               absl::StrCat(files.cgroups, "/", controller)};
    }
    for (const std::string& root : roots) {
      std::string path = parts[2] == "/" ? "" : parts[2];
      while (true) {
        folders.push_back(root + path);
        if (path.empty()) break;
        path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
      }
    }
  }
  return folders;
}

// The rest of the limit of this folder's group.
std::optional<uint64_t> left_in(const std::string& folder) {
  const bool is_version_2 = number_in(folder + "/memory.current").has_value();
  const auto file = [&](absl::string_view v2, absl::string_view v1) {
    return absl::StrCat(folder, "/", is_version_2 ? v2 : v1);
  };
  const auto limit = number_in(file("memory.max", "memory.limit_in_bytes"));
  const auto used = number_in(file("memory.current", "memory.usage_in_bytes"));
  if (!limit.has_value() || !used.has_value() || *limit < 0 || *used < 0) return std::nullopt;
  const std::vector<std::string> statistics = words_of(folder + "/memory.stat");
  const absl::string_view prefix = is_version_2 ? "" : "total_";
  const uint64_t cache = number_after(statistics, absl::StrCat(prefix, "inactive_file")) +
                         number_after(statistics, absl::StrCat(prefix, "active_file"));
  const auto taken = static_cast<uint64_t>(*used) - std::min<uint64_t>(*used, cache);
  return static_cast<uint64_t>(*limit) - std::min<uint64_t>(*limit, taken);
}

// The cores that the quota of this folder's group amounts to.
std::optional<int64_t> quota_in(const std::string& folder) {
  int64_t quota = 0;
  int64_t period = 0;
  const std::vector<std::string> max = words_of(folder + "/cpu.max");
  const bool is_version_2 =
      max.size() == 2 && absl::SimpleAtoi(max[0], &quota) && absl::SimpleAtoi(max[1], &period);
  if (!is_version_2) {
    quota = number_in(folder + "/cpu.cfs_quota_us").value_or(0);
    period = number_in(folder + "/cpu.cfs_period_us").value_or(0);
  }
  if (quota <= 0 || period <= 0) return std::nullopt;
  return std::max<int64_t>(1, quota / period);
}

}  // namespace

int usable_cores(const MachineFiles& files) {
  cpu_set_t cpus;
  int64_t cores = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus)
                                                                : sysconf(_SC_NPROCESSORS_ONLN);
  for (const std::string& folder : groups_of(files, "cpu")) {
    if (const auto quota = quota_in(folder)) cores = std::min(cores, *quota);
  }
  return static_cast<int>(std::max<int64_t>(1, cores));
}

uint64_t available_memory_bytes(const MachineFiles& files) {
  uint64_t available = std::numeric_limits<uint64_t>::max();
  const uint64_t kib = number_after(words_of(files.meminfo), "MemAvailable:");
  if (kib > 0) available = kib * 1024;
  for (const std::string& folder : groups_of(files, "memory")) {
    if (const auto left = left_in(folder)) available = std::min(available, *left);
  }
  return available;
}

}  // namespace tessera
