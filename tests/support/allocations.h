// SPDX-License-Identifier: Apache-2.0
//
// How often a program calls operator new or new[]: one that links this counts them.
//
// Not counted is what has a larger alignment than new gives by itself, which has an operator of its
// own, and what C takes with malloc(). Not with ASan or TSan, which have operators of their own.
// Thread-safe.
#ifndef TESSERA_TESTS_SUPPORT_ALLOCATIONS_H_
#define TESSERA_TESTS_SUPPORT_ALLOCATIONS_H_

#include <cstdint>

namespace tessera::testing {

// Of this process, with all its threads, since it began.
int64_t num_allocations();

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_ALLOCATIONS_H_
