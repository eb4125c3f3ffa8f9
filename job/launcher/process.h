// SPDX-License-Identifier: Apache-2.0
//
// Process: a child of this process that was forked, by its id and its pidfd.
//
//   start()       fork; the child asks to die with the thread that made it, and runs `body`
//   poll_exit()   how it ended; it stays a zombie, which keeps its id
//   reap()        waits for its end, and releases the id
//
// Invariant: a signal reaches this child and no other process. It is sent by the pidfd, or by the
// id while the child is not reaped.
//
// The destructor kills and reaps, but only in the process that made the child: a fork of that
// process has a copy of the object. Not thread-safe. Start children from a thread that lives as
// long as they may: the kernel ends them with it.
#ifndef TESSERA_JOB_LAUNCHER_PROCESS_H_
#define TESSERA_JOB_LAUNCHER_PROCESS_H_

#include <sys/types.h>

#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "base/status.h"
#include "job/environment/file_descriptor.h"
#include "job/launcher/exit_status.h"

namespace tessera {

class Process {
 public:
  // `body` runs in the child; where it returns, the child exits with code 1. ResourceExhausted: the
  // host has no process left. Unimplemented: the system has no pidfds. Where this process ignores
  // SIGCHLD the result may be reaped already.
  static StatusOr<Process> start(absl::FunctionRef<void()> body);

  Process() = default;
  Process(Process&&) = default;
  Process& operator=(Process&&) = delete;
  ~Process();

  pid_t pid() const { return pid_.value; }  // 0: reaped
  bool is_reaped() const { return pid_.value == 0; }
  // Whether this process made the child, and is no fork of the process that did.
  bool is_own() const;
  int pidfd() const { return pidfd_.get(); }  // readable once the process has ended
  void kill(int signal);
  // The end of the process, if it has ended. ExitStatus::unknown() where the kernel reaped it, as
  // it does while this process ignores SIGCHLD.
  std::optional<ExitStatus> poll_exit();
  // Whether the kernel has begun to end the process; poll_exit() knows the end only once its memory
  // is freed, which takes tenths of a second for many GiB.
  bool is_ending() const { return !is_reaped() && is_process_ending(pid_.value); }
  // Idempotent; unknown() from the second call on.
  ExitStatus reap();

 private:
  // Zero after a move, so that only one object ever kills.
  struct OwnedPid {
    OwnedPid() = default;
    OwnedPid(OwnedPid&& other) noexcept : value(std::exchange(other.value, 0)) {}
    pid_t value = 0;
  };

  OwnedPid pid_;
  pid_t owner_ = 0;  // the process that started the child
  FileDescriptor pidfd_;
};

}  // namespace tessera

#endif  // TESSERA_JOB_LAUNCHER_PROCESS_H_
