// SPDX-License-Identifier: Apache-2.0
//
// ExitStatus: how a child process ended, and the text for it.
//
//   ExitStatus::of_wait(status).to_string()   "was killed by SIGKILL (Killed)"
#ifndef TESSERA_JOB_LAUNCHER_EXIT_STATUS_H_
#define TESSERA_JOB_LAUNCHER_EXIT_STATUS_H_

#include <sys/types.h>

#include <string>

namespace tessera {

// How a process ended: by exit(code), or by a signal.
struct ExitStatus {
  int code = 0;
  int signal = 0;        // 0: it was not a signal
  bool is_known = true;  // false: the process was reaped by something else, or by the kernel

  // From the status of waitpid(2).
  static ExitStatus of_wait(int wait_status);
  // The status of a process whose end cannot be read any more. Not a success.
  static ExitStatus unknown() { return {.is_known = false}; }

  bool ok() const { return is_known && code == 0 && signal == 0; }
  // The code as in a shell: the code, or 128 + signal; 1 where the end is unknown.
  int shell_code() const;
  // "exited with code 3", "was killed by SIGSEGV (Segmentation fault)".
  std::string to_string() const;
};

// Whether the kernel has begun to end the process `pid`, or it has ended. The kernel frees the
// memory of a process before its parent can read how it ended, which takes tenths of a second for
// many GiB. `pid` must be a child that has not been reaped.
bool is_process_ending(pid_t pid);

}  // namespace tessera

#endif  // TESSERA_JOB_LAUNCHER_EXIT_STATUS_H_
