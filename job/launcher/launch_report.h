// SPDX-License-Identifier: Apache-2.0
//
// Launch report: the report of tessera_run about a job that did not end well. Text only, no
// processes.
//
//   tessera_run: 1 of 4 clients failed; the first was client 2
//   client 2 (host-a, pid 4711) exited with code 3, 1.204 s after the start (2026-...)
//     error: UNAVAILABLE: lost client 1 ...
//     last 2 lines:
//       | epoch 7
//       | cannot read "x.csv"
#ifndef TESSERA_JOB_LAUNCHER_LAUNCH_REPORT_H_
#define TESSERA_JOB_LAUNCHER_LAUNCH_REPORT_H_

#include <sys/types.h>

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "job/launcher/exit_status.h"

namespace tessera {

// The last lines that a client wrote, to either stream, in the order of their arrival.
class TailLines {
 public:
  static constexpr size_t kMaxLines = 20;
  static constexpr size_t kMaxLineBytes = 512;  // a longer line is cut, and marked as cut

  void add(absl::string_view line);
  const std::deque<std::string>& lines() const { return lines_; }

 private:
  std::deque<std::string> lines_;
};

// The end of one client, for the report.
struct ClientEnd {
  int client_id = 0;
  std::string host;
  // The tessera_run of a host, started over ssh; `pid` is the pid of ssh, and `client_id` the node.
  bool is_host = false;
  pid_t pid = 0;
  ExitStatus exit;
  absl::Time time;
  // Set if the launcher saw that the kernel was ending the process before its exit status could be
  // read: the kernel frees its memory in between.
  std::optional<absl::Time> ending_since;
  std::string reported_status;  // from its status channel; may be empty
  TailLines tail;

  // It reported the loss of another client (Unavailable): a consequence, not a cause.
  bool lost_a_peer() const;
  std::string name() const;  // "client 2 (host-a, pid 4711)", "the job on host-b (ssh pid 4711)"
};

// Orders failures by how likely each is the root cause: reports of a lost peer are last; the others
// are ordered by the time at which they began to end.
bool is_likelier_cause(const ClientEnd& a, const ClientEnd& b);

// Reports the first of `failures` as the root cause. `failures` is not empty.
std::string failure_report(const std::vector<ClientEnd>& failures, int num_clients,
                           absl::Time start);

// Which clients the launcher stopped after the failure of another; empty if none.
std::string stopped_report(const std::vector<int>& client_ids);

// `unfinished`: the clients that had not exited, `exit` unset.
std::string timeout_report(const std::vector<ClientEnd>& unfinished, int num_clients,
                           absl::Duration timeout);

}  // namespace tessera

#endif  // TESSERA_JOB_LAUNCHER_LAUNCH_REPORT_H_
