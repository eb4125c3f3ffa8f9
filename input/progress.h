// SPDX-License-Identifier: Apache-2.0
//
// Progress: the progress of an iteration as a line of text.
//
//   input::Progress progress({.steps = loader.cardinality(), .examples = images.cardinality()});
//   ... progress.add(batch->size) after each step ...
//   std::puts(progress.to_string().c_str());
//
//   step 12 of 235, 1,536 of 30,000 examples, 12,000/s, 2.4 s left
//
// A value. Steps and examples count from the start of the iteration, the rate from the construction
// of the Progress.
#ifndef TESSERA_INPUT_PROGRESS_H_
#define TESSERA_INPUT_PROGRESS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "base/public.h"

namespace TESSERA_PUBLIC tessera {
namespace input {

// Totals; nothing if a total is not known. `examples` is the cardinality of the data set before
// batch().
struct ProgressTotals {
  std::optional<int64_t> steps = {};
  std::optional<int64_t> examples = {};
};

class Progress {
 public:
  explicit Progress(const ProgressTotals& totals = {});

  // Counts a finished step of so many examples; it ended now, or `elapsed` after the construction.
  void add(int64_t examples);
  void add(int64_t examples, absl::Duration elapsed);

  int64_t steps() const { return steps_; }
  int64_t examples() const { return examples_; }
  // Examples per second up to the last step; 0 before the first.
  double rate() const;
  // Leaves out unknown values: totals, the rate before the first step, the remaining time.
  std::string to_string() const;

 private:
  ProgressTotals totals_;
  absl::Time begin_;
  absl::Duration elapsed_;  // up to the last step
  int64_t steps_ = 0;
  int64_t examples_ = 0;
};

}  // namespace input
}  // namespace tessera

#endif  // TESSERA_INPUT_PROGRESS_H_
