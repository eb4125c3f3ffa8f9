// SPDX-License-Identifier: Apache-2.0
//
// run_before_exit: runs work on a thread of its own; the process waits for its end. Internal to
// dtensor/.
#ifndef TESSERA_DTENSOR_RUN_BEFORE_EXIT_H_
#define TESSERA_DTENSOR_RUN_BEFORE_EXIT_H_

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "base/status.h"

namespace tessera {

// Runs `body` on a thread of its own. The process waits for it before it destroys its static
// objects, 10 s at most. ResourceExhausted, naming `subject`, where there is no thread: `body` has
// not run then. Thread-safe, as the functions below.
Status run_before_exit(absl::string_view subject, absl::AnyInvocable<void()> body);
// Makes the process wait, from this call on: objects that were constructed earlier are destroyed
// later.
void prepare_run_before_exit();
// Keeps an object that can never be destroyed, so that leak checkers do not report it.
void keep_until_exit(const void* object);

}  // namespace tessera

#endif  // TESSERA_DTENSOR_RUN_BEFORE_EXIT_H_
