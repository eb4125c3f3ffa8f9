// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/gpu/rounds.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace tessera::benchmarks {
namespace {

constexpr int kWarmUps = 2;

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
  using Json = nlohmann::ordered_json;
  Json json = {{"setting", Json::object()}, {"rows", Json::array()}, {"goals", Json::array()}};
  for (const auto& [name, value] : setting) json["setting"][name] = value;
  for (const Row& row : rows) {
    json["rows"].push_back({{"part", row.part},
                            {"what", row.what},
                            {"median_us", median(row.times)},
                            {"rate", row.rate},
                            {"compared", row.compared},
                            {"rounds_us", row.times},
                            {"beside_us", row.beside}});
  }
  for (const Goal& goal : goals) {
    json["goals"].push_back({{"goal", goal.name}, {"outcome", outcome(goal)}, {"text", goal.text}});
  }
  // The error text of another library may not be UTF-8.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tessera::benchmarks
