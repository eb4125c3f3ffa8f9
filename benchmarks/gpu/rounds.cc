// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/gpu/rounds.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace tessera::benchmarks {
namespace {

constexpr int kWarmUps = 2;

std::string json_string(absl::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppend(&result, "\\u00", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    } else {
      result += c;
    }
  }
  return result + "\"";
}

std::string list(const Times& times) {
  return absl::StrCat("[",
                      absl::StrJoin(times, ", ",
                                    [](std::string* out, double us) {
                                      absl::StrAppend(out, absl::StrFormat("%.3f", us));
                                    }),
                      "]");
}

const char* outcome(const Goal& goal) {
  if (!goal.is_measured) return "not measured";
  return goal.is_reached ? "reached" : "not reached";
}

}  // namespace

double median(Times times) {
  if (times.empty()) return 0;
  std::sort(times.begin(), times.end());
  const size_t half = times.size() / 2;
  return times.size() % 2 == 1 ? times[half] : (times[half - 1] + times[half]) / 2;
}

StatusOr<std::vector<Times>> measure_in_turn(absl::Span<const Contestant> contestants,
                                             int num_rounds) {
  std::vector<Times> times(contestants.size());
  for (int round = -kWarmUps; round < num_rounds; ++round) {
    for (size_t i = 0; i < contestants.size(); ++i) {
      const size_t k = (i + static_cast<size_t>(round + kWarmUps)) % contestants.size();
      const StatusOr<absl::Duration> time = contestants[k].run();
      if (!time.ok()) return with_context(time.status(), contestants[k].name);
      if (round >= 0) times[k].push_back(absl::ToDoubleMicroseconds(*time));
    }
  }
  return times;
}

std::string Report::to_markdown() const {
  std::string text;
  for (const auto& [name, value] : setting) absl::StrAppend(&text, name, ": ", value, "\n");
  absl::StrAppend(&text,
                  "\n| part | what | us | rate | compared |\n| --- | --- | ---: | ---: | --- |\n");
  for (const Row& row : rows) {
    absl::StrAppend(&text, "| ", row.part, " | ", row.what, " | ",
                    absl::StrFormat("%.2f", median(row.times)), " | ", row.rate, " | ",
                    row.compared, " |\n");
  }
  absl::StrAppend(&text, "\n");
  for (const Goal& goal : goals) {
    absl::StrAppend(&text, outcome(goal), ": ", goal.name, ": ", goal.text, "\n");
  }
  return text;
}

std::string Report::to_json() const {
  std::vector<std::string> settings, lines, ends;
  for (const auto& [name, value] : setting) {
    settings.push_back(absl::StrCat("    ", json_string(name), ": ", json_string(value)));
  }
  for (const Row& row : rows) {
    lines.push_back(absl::StrCat(
        "    {\"part\": ", json_string(row.part), ", \"what\": ", json_string(row.what),
        ", \"median_us\": ", absl::StrFormat("%.3f", median(row.times)),
        ", \"rate\": ", json_string(row.rate), ", \"compared\": ", json_string(row.compared),
        ",\n     \"rounds_us\": ", list(row.times), ",\n     \"beside_us\": ", list(row.beside),
        "}"));
  }
  for (const Goal& goal : goals) {
    ends.push_back(absl::StrCat("    {\"goal\": ", json_string(goal.name),
                                ", \"outcome\": ", json_string(outcome(goal)),
                                ", \"text\": ", json_string(goal.text), "}"));
  }
  return absl::StrCat("{\n  \"setting\": {\n", absl::StrJoin(settings, ",\n"),
                      "\n  },\n  \"rows\": [\n", absl::StrJoin(lines, ",\n"),
                      "\n  ],\n  \"goals\": [\n", absl::StrJoin(ends, ",\n"), "\n  ]\n}\n");
}

}  // namespace tessera::benchmarks
