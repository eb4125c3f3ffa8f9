// SPDX-License-Identifier: Apache-2.0
#include "input/progress.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"

namespace tessera::input {
namespace {

// 1,536,000.
std::string grouped(int64_t count) {
  std::string digits = absl::StrCat(count);
  for (int64_t i = static_cast<int64_t>(digits.size()) - 3; i > 0; i -= 3) digits.insert(i, 1, ',');
  return digits;
}

std::string of_total(int64_t count, const std::optional<int64_t>& total) {
  return absl::StrCat(grouped(count), total.has_value() ? " of " + grouped(*total) : "");
}

}  // namespace

Progress::Progress(const ProgressTotals& totals) : totals_(totals), begin_(steady_now()) {}

void Progress::add(int64_t examples) { add(examples, steady_now() - begin_); }
void Progress::add(int64_t examples, absl::Duration elapsed) {
  ++steps_;
  examples_ += examples;
  elapsed_ = elapsed;
}

double Progress::rate() const {
  const double seconds = absl::ToDoubleSeconds(elapsed_);
  return seconds > 0 ? static_cast<double>(examples_) / seconds : 0;
}

std::string Progress::to_string() const {
  std::string text = absl::StrCat("step ", of_total(steps_, totals_.steps), ", ",
                                  of_total(examples_, totals_.examples), " examples");
  if (rate() <= 0) return text;
  absl::StrAppend(&text, ", ", grouped(std::llround(rate())), "/s");
  // By examples where their number is known, else by steps.
  const bool by_examples = totals_.examples.has_value();
  const std::optional<int64_t> total = by_examples ? totals_.examples : totals_.steps;
  if (!total.has_value()) return text;
  const auto done = static_cast<double>(by_examples ? examples_ : steps_);
  const double left =
      (static_cast<double>(*total) - done) / done;  // as a multiple of the elapsed time
  const double seconds = std::fmax(0, left) * absl::ToDoubleSeconds(elapsed_);
  absl::StrAppend(&text, absl::StrFormat(", %.*f s left", seconds < 10 ? 1 : 0, seconds));
  return text;
}

}  // namespace tessera::input
