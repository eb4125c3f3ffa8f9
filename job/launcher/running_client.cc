// SPDX-License-Identifier: Apache-2.0
#include "job/launcher/running_client.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "job/launcher/status_channel.h"

namespace tessera {
namespace {

constexpr size_t kChunkBytes = size_t{64} << 10;
constexpr size_t kMostPipeBytes = size_t{1} << 20;

}  // namespace

RunningClient::RunningClient(ChildProcess child, ClientEnd about, OutputSink* output,
                             OutputSink* error)
    : process(std::move(child)), end(std::move(about)), error_(error) {
  end.pid = process.pid();
  streams[0].fd = &process.standard_output();
  streams[0].sink = output;
  streams[1].fd = &process.standard_error();
  streams[1].sink = error;
  for (Stream& stream : streams) {
    stream.prefix = end.is_host ? absl::StrCat("[", end.host, "] ")
                                : line_prefix(end.client_id, takes_colour(stream.sink->fd()));
  }
}

Status RunningClient::open_log(const std::string& folder, int attempt) {
  const std::string path = absl::StrCat(folder, "/client_", end.client_id, ".log");
  // A restart goes on in the file of the run that explains it.
  const int mode = attempt == 0 ? O_TRUNC : 0;
  log_ = FileDescriptor(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | mode, 0666));
  if (log_.is_open()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--log-dir is ", tessera::in_quotes(folder),
                                                 ", where client_", end.client_id,
                                                 ".log cannot be made: ", std::strerror(errno)));
}

void RunningClient::read(Stream& stream, size_t max_bytes) {
  const auto on_line = [&](absl::string_view line) { write_line(stream, line); };
  std::string bytes(std::min(max_bytes, kChunkBytes), '\0');
  for (size_t total = 0; total < max_bytes;) {
    const ssize_t size = ::read(stream.fd->get(), bytes.data(), bytes.size());
    if (size > 0) {
      stream.splitter.append(absl::string_view(bytes).substr(0, size), on_line);
      total += static_cast<size_t>(size);
    } else if (size < 0 && errno == EAGAIN) {
      return;
    } else if (size == 0 || errno != EINTR) {
      stream.splitter.finish(on_line);
      stream.fd->close();
      return;
    }
  }
}

void RunningClient::close_output() {
  for (Stream& stream : streams) {
    if (!stream.fd->is_open()) continue;
    read(stream, kMostPipeBytes);
    stream.splitter.finish([&](absl::string_view line) { write_line(stream, line); });
    stream.fd->close();
  }
}

void RunningClient::take_status() {
  FileDescriptor& channel = process.status_channel();
  std::string message = receive_fatal_status(channel.get());
  if (message.empty()) channel.close();
  if (end.reported_status.empty()) end.reported_status = std::move(message);
}

void RunningClient::write_line(Stream& stream, absl::string_view line) {
  // The launcher of a host has named the client.
  if (!end.is_host || !absl::StartsWith(line, "[client ")) stream.sink->append(stream.prefix);
  stream.sink->append(line);
  stream.sink->append("\n");
  end.tail.add(line);
  if (!log_.is_open()) return;
  const std::string text = absl::StrCat(line, "\n");
  if (write(log_.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    error_->append(absl::StrCat("tessera_run: client_", end.client_id,
                                ".log ends here: ", std::strerror(errno), "\n"));
    log_.close();
  }
}

}  // namespace tessera
