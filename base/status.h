// SPDX-License-Identifier: Apache-2.0
//
// Status and StatusOr as Tessera uses them, and the macros that pass errors up.
//
//   Status close_all() {
//     TESSERA_RETURN_IF_ERROR(close_first());
//     TESSERA_ASSIGN_OR_RETURN(int count, count_open());
//     ...
//   }
//
// Abseil 20220623 (Debian 12) has no status macros; these have the meaning of upstream's
// ABSL_RETURN_IF_ERROR and ABSL_ASSIGN_OR_RETURN. TESSERA_ASSIGN_OR_RETURN is several statements:
// use it inside braces only.
#ifndef TESSERA_BASE_STATUS_H_
#define TESSERA_BASE_STATUS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/public.h"

namespace TESSERA_PUBLIC tessera {

using absl::Status;
using absl::StatusOr;

// `status` with `context` and ": " before its message: context is added once, at the public call.
Status with_context(const Status& status, absl::string_view context);

namespace internal {
// FailedPrecondition "Mesh::slice() of an empty Mesh; ...", for the use of a default-constructed
// handle of class `type`.
Status empty_handle(absl::string_view call, absl::string_view type);

inline const Status& as_status(const Status& status) { return status; }
template <class T>
const Status& as_status(const StatusOr<T>& result) {
  return result.status();
}
}  // namespace internal

}  // namespace tessera

#define TESSERA_CONCAT_INNER_(a, b) a##b
#define TESSERA_CONCAT_(a, b) TESSERA_CONCAT_INNER_(a, b)

// Returns the error of `expression` (a Status or a StatusOr) from the enclosing function, if any.
// The error is copied while the temporaries of `expression` live, which may hold it.
#define TESSERA_RETURN_IF_ERROR(expression)                                                \
  do {                                                                                     \
    if (const ::absl::Status tessera_status_ = ::tessera::internal::as_status(expression); \
        !tessera_status_.ok()) {                                                           \
      return tessera_status_;                                                              \
    }                                                                                      \
  } while (false)

// Declares or assigns `target` from a StatusOr, or returns its error.
#define TESSERA_ASSIGN_OR_RETURN(target, expression)                   \
  auto TESSERA_CONCAT_(tessera_or_, __LINE__) = (expression);          \
  if (!TESSERA_CONCAT_(tessera_or_, __LINE__).ok()) {                  \
    return std::move(TESSERA_CONCAT_(tessera_or_, __LINE__)).status(); \
  }                                                                    \
  target = *std::move(TESSERA_CONCAT_(tessera_or_, __LINE__))

#endif  // TESSERA_BASE_STATUS_H_
