// SPDX-License-Identifier: Apache-2.0
//
// The sanitizer for which the test is built (docs/testing.md). The plain build checks results and
// runs all samples. Instrumented code, ten times as slow, checks for undefined behaviour and races,
// and runs a part of the samples.
#ifndef TESSERA_TESTS_SUPPORT_SANITIZERS_H_
#define TESSERA_TESTS_SUPPORT_SANITIZERS_H_

namespace tessera::testing {

// Defined by .bazelrc for clang, which has no such names.
#ifdef __SANITIZE_THREAD__
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = kThreadSanitizer;
#endif

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_SANITIZERS_H_
