// SPDX-License-Identifier: Apache-2.0
#include "tests/support/leaks.h"

#include <dirent.h>
#include <malloc.h>
#include <unistd.h>

#include <fstream>

namespace tessera::testing {

std::set<std::string> entries_of(const std::string& folder) {
  std::set<std::string> entries;
  DIR* const dir = opendir(folder.c_str());
  if (dir == nullptr) return entries;
  while (const dirent* entry = readdir(dir)) entries.insert(entry->d_name);
  closedir(dir);
  return entries;
}

std::set<std::string> tessera_entries_of(const std::string& folder) {
  std::set<std::string> names = entries_of(folder);
  std::erase_if(names, [](const std::string& name) { return name.find("tessera") == name.npos; });
  return names;
}

Holdings current_holdings() {
  Holdings result;
  malloc_trim(0);  // what is free is not held
  result.heap_bytes = static_cast<int64_t>(mallinfo2().uordblks);
  for (const std::string& name : entries_of("/proc/self/fd")) {
    char target[256] = {};
    if (readlink(("/proc/self/fd/" + name).c_str(), target, sizeof target - 1) < 0) continue;
    ++result.descriptors;
    const bool is_memory = std::string(target).find("memfd:") != std::string::npos;
    if (!is_memory) ++result.sockets_and_events;
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) ++result.mappings;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "RssAnon:") status >> result.private_kib;
    if (word == "RssShmem:") status >> result.shared_kib;
  }
  return result;
}

std::ostream& operator<<(std::ostream& out, const Holdings& holdings) {
  return out << holdings.descriptors << " descriptors, " << holdings.mappings << " mappings, "
             << holdings.heap_bytes << " bytes of the heap, " << holdings.private_kib
             << " KiB private, " << holdings.shared_kib << " KiB shared";
}

}  // namespace tessera::testing
