// SPDX-License-Identifier: Apache-2.0
//
// dispose: what the last handle of a client does. Internal to dtensor/.
//
//   last handle goes on         the runtime
//   a thread of the user's      ends at once: ~Runtime waits for the threads of its devices;
//   a thread of a device        ends on another thread: one of the threads to wait for is this one
//   a forked child              stays: its threads and shared memory are the parent's
//
// The first: a program may rely on the job being left when the handle has gone. The second happens
// where a local function holds a tensor, a mesh or the client, and outlives all other handles.
#ifndef TESSERA_DTENSOR_DISPOSE_H_
#define TESSERA_DTENSOR_DISPOSE_H_

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "base/status.h"

namespace tessera {

class Runtime;

// Thread-safe.
void dispose(Runtime* runtime);

// Runs `body` on a thread of its own, for whose end the process waits before its static objects go,
// 10 s at most. ResourceExhausted, naming `subject`, where there is no thread: it has not run then.
Status run_before_exit(absl::string_view subject, absl::AnyInvocable<void()> body);
// Makes the process wait, from this call on: objects made earlier go later.
void prepare_run_before_exit();

}  // namespace tessera

#endif  // TESSERA_DTENSOR_DISPOSE_H_
