// SPDX-License-Identifier: Apache-2.0
//
// ChildProcess: a client from the view of the launcher: a process group of its own, the pipes of
// its output, its status channel and its end.
//
//   start()          fork; the child makes its group, asks to die with the launcher, execs
//   await_exec()     the exec worked, or why not
//   signal_group()   while the child is not reaped the kernel cannot reuse its id, so the signal
//                    reaches this child and its descendants, and no other process
//   poll_exit()      how it ended; it stays a zombie, which keeps the id
//   kill_and_reap()  kills the rest of its group, then releases the id
//
// The destructor kills and reaps, so that no error path of the launcher leaves a process behind.
// Not thread-safe. Start children from a thread that lives as long as they may: the kernel ends
// them with the thread that made them.
#ifndef TESSERA_JOB_LAUNCHER_CHILD_PROCESS_H_
#define TESSERA_JOB_LAUNCHER_CHILD_PROCESS_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "job/environment/file_descriptor.h"
#include "job/launcher/exit_status.h"
#include "job/launcher/process.h"

namespace tessera {

class ChildProcess {
 public:
  // `command` is looked up on PATH unless it has a slash; `environment` is all of it, "NAME=value".
  // TESSERA_STATUS_FD is added. Standard input is /dev/null, or a pipe that holds `input` and stays
  // open: at most 60 KiB. ResourceExhausted: no descriptor or process is left. Descriptors 0, 1 and
  // 2 of this process must be open.
  static StatusOr<ChildProcess> start(const std::vector<std::string>& command,
                                      const std::vector<std::string>& environment,
                                      const std::string& input = "");

  ChildProcess(ChildProcess&&) = default;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();

  // Waits until the child runs the program. NotFound: there is no such program. FailedPrecondition:
  // it cannot be executed. Both name it and say what to do.
  Status await_exec(const std::string& program);

  pid_t pid() const { return process_.pid(); }
  int pidfd() const { return process_.pidfd(); }         // readable once the process has ended
  FileDescriptor& standard_output() { return output_; }  // read ends, non-blocking
  FileDescriptor& standard_error() { return error_; }
  FileDescriptor& status_channel() { return status_; }
  // Write end of the pipe, where there is one; the child sees the end of its input at close().
  FileDescriptor& standard_input() { return input_; }

  // Sends `signal` to the process group; nothing after kill_and_reap().
  void signal_group(int signal);
  // See Process.
  std::optional<ExitStatus> poll_exit() { return process_.poll_exit(); }
  bool is_ending() const { return process_.is_ending(); }
  bool is_reaped() const { return process_.is_reaped(); }
  // Kills the group, waits for the end of the process, and releases its id. Idempotent.
  void kill_and_reap();

 private:
  explicit ChildProcess(Process process) : process_(std::move(process)) {}

  Process process_;
  FileDescriptor input_;
  FileDescriptor output_;
  FileDescriptor error_;
  FileDescriptor status_;
  FileDescriptor exec_error_;  // closes on exec; gets an errno where exec failed
};

}  // namespace tessera

#endif  // TESSERA_JOB_LAUNCHER_CHILD_PROCESS_H_
