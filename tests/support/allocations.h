// SPDX-License-Identifier: Apache-2.0
//
// Counts the calls of operator new and new[] in a program that links this.
//
// Does not count memory with a larger alignment than new gives by itself, which has an operator of
// its own, and C's malloc(). Does not work with ASan or TSan, which have operators of their own.
// Thread-safe.
#ifndef TESSERA_TESTS_SUPPORT_ALLOCATIONS_H_
#define TESSERA_TESTS_SUPPORT_ALLOCATIONS_H_

#include <cstdint>

namespace tessera::testing {

// The calls of this process, in all its threads, since it began.
int64_t num_allocations();

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_ALLOCATIONS_H_
