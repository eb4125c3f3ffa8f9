// SPDX-License-Identifier: Apache-2.0
//
// call_guarded, exception_status: the exception of a user's function as a Status. No exception may
// leave a thread of this library, for that would end the process.
//
//   StatusOr<int> number = call_guarded<StatusOr<int>>([&] { return fn(args); });
#ifndef TESSERA_BASE_EXCEPTION_STATUS_H_
#define TESSERA_BASE_EXCEPTION_STATUS_H_

#include "base/status.h"

namespace tessera {

// Unknown, with what() of a std::exception. Requires an exception that is being handled.
Status exception_status();

// The result of `fn`, or its exception. Result: a Status, or what one converts to, as a StatusOr.
template <class Result, class Fn>
Result call_guarded(const Fn& fn) {
  try {
    return fn();
  } catch (...) {
    return exception_status();
  }
}

}  // namespace tessera

#endif  // TESSERA_BASE_EXCEPTION_STATUS_H_
