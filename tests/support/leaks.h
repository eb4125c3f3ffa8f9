// SPDX-License-Identifier: Apache-2.0
//
// The system resources that a process holds, for tests that look for leaks.
#ifndef TESSERA_TESTS_SUPPORT_LEAKS_H_
#define TESSERA_TESTS_SUPPORT_LEAKS_H_

#include <cstdint>
#include <ostream>
#include <set>
#include <string>

namespace tessera::testing {

// The names in a folder; none where it cannot be read.
std::set<std::string> entries_of(const std::string& folder);
// The entries that name Tessera: other programs of the machine use /dev/shm and /tmp at the same
// time.
std::set<std::string> tessera_entries_of(const std::string& folder);

// The resources that this process holds now.
struct Holdings {
  int64_t descriptors = 0;
  int64_t sockets_and_events = 0;  // descriptors, without memory
  int64_t mappings = 0;
  int64_t heap_bytes = 0;   // of malloc's first arena, handed out and not given back
  int64_t private_kib = 0;  // resident: heap and stacks
  int64_t shared_kib = 0;   // resident: arenas, of this process and its peers
};
Holdings current_holdings();
std::ostream& operator<<(std::ostream& out, const Holdings& holdings);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_LEAKS_H_
