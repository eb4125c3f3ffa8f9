// SPDX-License-Identifier: Apache-2.0
//
// Which sanitizer the test is built for (docs/testing.md). The plain build looks for wrong results
// and takes all samples; instrumented code, ten times as slow, looks for undefined behaviour and
// races, and takes a part of them.
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
