// SPDX-License-Identifier: Apache-2.0
//
// Line output: how the output of many clients becomes one readable stream.
//
//   client 0  "epoch 1\nepo" "ch 2\n"  -> LineSplitter -> "[client 0] epoch 1\n" --+
//   client 1  "loading" (end)          -> LineSplitter -> "[client 1] loading\n"  --+-> OutputSink
//
// A line is passed on when it is whole, so lines of two clients are never mixed, however long they
// are. Neither class blocks: the launcher must see signals and deadlines while a slow reader of
// its own output holds everything up.
#ifndef TESSERA_JOB_LAUNCHER_LINE_OUTPUT_H_
#define TESSERA_JOB_LAUNCHER_LINE_OUTPUT_H_

#include <cstddef>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace tessera {

// Cuts a stream of bytes into lines.
class LineSplitter {
 public:
  // A line of more bytes than this is cut, so that a client cannot use up the launcher's memory.
  static constexpr size_t kMaxLineBytes = size_t{16} << 20;

  using LineFunction = absl::FunctionRef<void(absl::string_view line)>;

  // Takes bytes; calls `on_line` for each line that they complete, without its newline.
  void append(absl::string_view bytes, LineFunction on_line);
  // The stream has ended: the last line may lack its newline.
  void finish(LineFunction on_line);
  // The line that has begun and not ended.
  absl::string_view pending() const { return pending_; }

 private:
  std::string pending_;
};

// Queues text for a descriptor and writes as much as it takes without blocking.
class OutputSink {
 public:
  // Above this many queued bytes is_full() asks the producers to wait.
  static constexpr size_t kFullBytes = size_t{4} << 20;

  explicit OutputSink(int fd) : fd_(fd) {}

  void append(absl::string_view text);
  bool has_pending() const { return begin_ < pending_.size(); }
  bool is_full() const { return pending_.size() - begin_ > kFullBytes; }
  // Why it accepts no more text, as errno: EPIPE where its reader has ended, ENOSPC where a disk is
  // full. 0 while it accepts text. After an error appended text is dropped.
  int error() const { return error_; }
  int fd() const { return fd_; }

  // Writes while the descriptor takes bytes. Whole lines go in one write where they fit into
  // PIPE_BUF bytes, so that other writers of the same pipe do not cut them either.
  void drain();

 private:
  const int fd_;
  std::string pending_;
  size_t begin_ = 0;  // the bytes before it have been written
  int error_ = 0;
};

// Whether lines written to `fd` may be coloured: a terminal, not TERM=dumb, NO_COLOR not set.
bool takes_colour(int fd);

// "[client 2] ", in the client's colour if asked.
std::string line_prefix(int client_id, bool in_colour);

}  // namespace tessera

#endif  // TESSERA_JOB_LAUNCHER_LINE_OUTPUT_H_
