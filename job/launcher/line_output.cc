// SPDX-License-Identifier: Apache-2.0
//
// Splitting into lines, and writing without ever blocking on the reader.
#include "job/launcher/line_output.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace tessera {

void LineSplitter::append(absl::string_view bytes, LineFunction on_line) {
  while (!bytes.empty()) {
    const size_t newline = bytes.find('\n');
    const bool is_whole = newline != absl::string_view::npos;
    const absl::string_view piece = bytes.substr(0, newline);
    bytes.remove_prefix(is_whole ? newline + 1 : bytes.size());
    if (is_whole && pending_.empty()) {
      on_line(piece);
      continue;
    }
    pending_.append(piece.data(), piece.size());
    if (is_whole || pending_.size() > kMaxLineBytes) {
      on_line(pending_);
      pending_.clear();
    }
  }
}

void LineSplitter::finish(LineFunction on_line) {
  if (!pending_.empty()) on_line(pending_);
  pending_.clear();
}

void OutputSink::append(absl::string_view text) {
  if (error_ == 0) pending_.append(text.data(), text.size());
}

void OutputSink::drain() {
  // poll says that PIPE_BUF bytes fit; a longer write to a pipe or a terminal could block, and
  // O_NONBLOCK would change the descriptor for every process that shares it.
  pollfd ready = {.fd = fd_, .events = POLLOUT, .revents = 0};
  while (has_pending() && error_ == 0 && poll(&ready, 1, 0) == 1) {
    absl::string_view chunk = absl::string_view(pending_).substr(begin_, PIPE_BUF);
    const size_t last_newline = chunk.rfind('\n');
    if (last_newline != absl::string_view::npos) chunk = chunk.substr(0, last_newline + 1);
    const ssize_t written = write(fd_, chunk.data(), chunk.size());
    if (written > 0) {
      begin_ += static_cast<size_t>(written);
    } else if (written < 0 && errno == EAGAIN) {
      break;
    } else if (written < 0 && errno != EINTR) {
      error_ = errno;
    }
  }
  if (!has_pending() || error_ != 0) {
    pending_.clear();
    begin_ = 0;
  } else if (begin_ > kFullBytes) {
    pending_.erase(0, begin_);
    begin_ = 0;
  }
}

bool takes_colour(int fd) {
  const char* terminal = std::getenv("TERM");
  return isatty(fd) && std::getenv("NO_COLOR") == nullptr && terminal != nullptr &&
         absl::string_view(terminal) != "dumb";
}

std::string line_prefix(int client_id, bool in_colour) {
  const std::string text = absl::StrCat("[client ", client_id, "]");
  if (!in_colour) return absl::StrCat(text, " ");
  // Cyan, yellow, green, magenta, blue: red is left to errors.
  constexpr int kColours[] = {36, 33, 32, 35, 34};
  return absl::StrCat("\x1b[", kColours[client_id % 5], "m", text, "\x1b[0m ");
}

}  // namespace tessera
