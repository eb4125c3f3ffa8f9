// SPDX-License-Identifier: Apache-2.0
//
// Measures contestants in turn, and prints the results as a table.
//
//   TESSERA_ASSIGN_OR_RETURN(const std::vector<Times> times, measure_in_turn(contestants, 15));
//   report.rows.push_back({.part = "kernels", .what = "pack", .times = times[1],
//                          .rate = "4086 GB/s", .compared = "0.97 of the copy's rate",
//                          .beside = times[0]});
//   std::fputs(report.to_markdown().c_str(), stdout);
//
// A round measures every contestant once. The order rotates by one each round, so that slow
// changes, of a GPU's clock or other load, affect all. A contestant's number is the median of its
// rounds.
#ifndef TESSERA_BENCHMARKS_GPU_ROUNDS_H_
#define TESSERA_BENCHMARKS_GPU_ROUNDS_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"

namespace tessera::benchmarks {

struct Contestant {
  std::string name;
  // Runs it once. Returns the time of one counted call.
  std::function<StatusOr<absl::Duration>()> run;
};

// The time of each round, in microseconds.
using Times = std::vector<double>;
double median(Times times);

// Returns the times by contestant. Two initial rounds do not count.
StatusOr<std::vector<Times>> measure_in_turn(absl::Span<const Contestant> contestants,
                                             int num_rounds);

struct Row {
  std::string part;  // "kernels"
  std::string what;  // "pack, runs of 64 B"
  Times times;
  std::string rate;      // "4212 GB/s", or nothing
  std::string compared;  // the number that a goal is for: "0.97 of the copy's rate"
  Times beside;          // times of the contestant beside it, or nothing
};

// A number to reach. Without a value it was not measured, and `text` has the reason.
struct Goal {
  std::string name;
  std::string text;
  bool is_measured = false;
  bool is_reached = false;
};

struct Report {
  // Machine, date and number of rounds: "on", "date", "rounds".
  std::vector<std::pair<std::string, std::string>> setting;
  std::vector<Row> rows;
  std::vector<Goal> goals;

  // The setting, the table, and a line per goal that begins with "reached", "not reached" or "not
  // measured".
  std::string to_markdown() const;
  // As to_markdown(), with the times of all rounds.
  std::string to_json() const;
};

}  // namespace tessera::benchmarks

#endif  // TESSERA_BENCHMARKS_GPU_ROUNDS_H_
