// SPDX-License-Identifier: Apache-2.0
//
// How often a program locks a mutex of the system (std::mutex): one that links this counts them.
//
// Not with ASan or TSan, which look at these calls themselves. Thread-safe.
#ifndef TESSERA_TESTS_SUPPORT_LOCKS_H_
#define TESSERA_TESTS_SUPPORT_LOCKS_H_

#include <cstdint>

namespace tessera::testing {

// Of this process, with all its threads, since it began.
int64_t num_locks();

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_LOCKS_H_
