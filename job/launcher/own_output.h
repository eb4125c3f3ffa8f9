// SPDX-License-Identifier: Apache-2.0
//
// Internal to the launcher. OwnOutput: its own standard output and standard error. Where both are
// one file, there is a single sink, so that lines are not cut by each other.
//
// It waits for nothing. Not thread-safe.
#ifndef TESSERA_JOB_LAUNCHER_OWN_OUTPUT_H_
#define TESSERA_JOB_LAUNCHER_OWN_OUTPUT_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "job/launcher/line_output.h"

namespace tessera {

class OwnOutput {
 public:
  OwnOutput();

  OutputSink* out() const { return sinks_.front().get(); }
  OutputSink* err() const { return sinks_.back().get(); }
  // One, or standard output before standard error.
  absl::Span<const std::unique_ptr<OutputSink>> sinks() const { return sinks_; }

  void say(absl::string_view text) { err()->append(text); }
  void drain();
  bool has_pending() const;
  // The errno of the first sink that takes no more; 0: none.
  int error() const;
  // "the standard output of tessera_run cannot be written: ...". Requires that error() is not 0.
  std::string describe_error() const;

 private:
  std::vector<std::unique_ptr<OutputSink>> sinks_;
};

}  // namespace tessera

#endif  // TESSERA_JOB_LAUNCHER_OWN_OUTPUT_H_
