// SPDX-License-Identifier: Apache-2.0
//
// Checks for our own bugs. Bad input is never a check: it is a Status.
//
// TESSERA_CHECK(condition, "what broke") is always on and stays off per-element paths;
// TESSERA_DCHECK is for inner loops and exists only where NDEBUG is not defined.
#ifndef TESSERA_BASE_CHECK_H_
#define TESSERA_BASE_CHECK_H_

namespace tessera::internal {

// Prints file, line, condition and message to stderr and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const char* message);

}  // namespace tessera::internal

#define TESSERA_CHECK(condition, message)                                         \
  do {                                                                            \
    if (!(condition)) [[unlikely]] {                                              \
      ::tessera::internal::check_failed(__FILE__, __LINE__, #condition, message); \
    }                                                                             \
  } while (false)

#ifdef NDEBUG
#define TESSERA_DCHECK(condition) \
  do {                            \
  } while (false)
#else
#define TESSERA_DCHECK(condition) TESSERA_CHECK(condition, "debug check")
#endif

#endif  // TESSERA_BASE_CHECK_H_
