// SPDX-License-Identifier: Apache-2.0
#include "job/launcher/own_output.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tessera {

OwnOutput::OwnOutput() {
  struct stat out = {};
  struct stat err = {};
  const bool is_one_file = fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &err) == 0 &&
                           out.st_dev == err.st_dev && out.st_ino == err.st_ino;
  sinks_.push_back(std::make_unique<OutputSink>(STDOUT_FILENO));
  if (!is_one_file) sinks_.push_back(std::make_unique<OutputSink>(STDERR_FILENO));
}

void OwnOutput::drain() {
  for (const auto& sink : sinks_) sink->drain();
}

bool OwnOutput::has_pending() const {
  return std::any_of(sinks_.begin(), sinks_.end(),
                     [](const auto& sink) { return sink->has_pending(); });
}

int OwnOutput::error() const { return out()->error() != 0 ? out()->error() : err()->error(); }

std::string OwnOutput::describe_error() const {
  return absl::StrCat("the standard ", out()->error() != 0 ? "output" : "error",
                      " of tessera_run cannot be written: ", std::strerror(error()),
                      "; make room there, or send the output elsewhere");
}

}  // namespace tessera
