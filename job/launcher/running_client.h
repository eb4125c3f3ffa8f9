// SPDX-License-Identifier: Apache-2.0
//
// Internal to the launcher. RunningClient: a process that the launcher has started, its output, and
// the known facts of its end. The process is a client, or the ssh of a host.
//
//   pipe of the client --> LineSplitter --> "[client 2] line" --> OutputSink of the launcher
//                                      \--> the last lines, for the report; client_2.log
//
// It waits for nothing: the loop of the launcher calls it when a descriptor is ready. Not
// thread-safe.
#ifndef TESSERA_JOB_LAUNCHER_RUNNING_CLIENT_H_
#define TESSERA_JOB_LAUNCHER_RUNNING_CLIENT_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "job/environment/file_descriptor.h"
#include "job/launcher/child_process.h"
#include "job/launcher/launch_report.h"
#include "job/launcher/line_output.h"

namespace tessera {

struct RunningClient {
  struct Stream {
    FileDescriptor* fd = nullptr;
    OutputSink* sink = nullptr;
    std::string prefix;
    LineSplitter splitter;
  };

  // The sinks outlive the object. `about` has its id, host and is_host.
  RunningClient(ChildProcess child, ClientEnd about, OutputSink* output, OutputSink* error);
  // Streams refer to the process.
  RunningClient(const RunningClient&) = delete;

  // Writes the output to client_K.log of the folder too; attempts after the first append to it.
  // InvalidArgument: the file cannot be made.
  Status open_log(const std::string& folder, int attempt);
  // Passes on up to so many bytes that are there, line by line; closes a stream that has ended.
  void read(Stream& stream, size_t max_bytes);
  // Passes on the output that was written until now, and closes the streams: a process that left
  // the client's group may hold them for ever.
  void close_output();
  // Reads a message of the status channel; the first is kept.
  void take_status();

  bool has_open_stream() const { return streams[0].fd->is_open() || streams[1].fd->is_open(); }
  bool is_done() const { return process.is_reaped() && !has_open_stream(); }

  ChildProcess process;
  ClientEnd end;
  Stream streams[2];
  bool has_exited = false;
  bool was_stopped = false;  // the launcher signalled it before it ended
  bool was_killed = false;   // the launcher sent it SIGKILL
  absl::Time drain_deadline = absl::InfiniteFuture();

 private:
  void write_line(Stream& stream, absl::string_view line);

  OutputSink* error_;
  FileDescriptor log_;
};

}  // namespace tessera

#endif  // TESSERA_JOB_LAUNCHER_RUNNING_CLIENT_H_
