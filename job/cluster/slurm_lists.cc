// SPDX-License-Identifier: Apache-2.0
//
// The short notations of Slurm: expand_node_list() and expand_tasks_per_node() of cluster.h.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/text.h"
#include "job/cluster/cluster.h"
#include "job/environment/launch_form.h"

namespace tessera::cluster {
namespace {

constexpr uint64_t kMostNodes = 65'536;

// A text before a range, and the numbers of the range; the last may have none.
struct Part {
  std::string text;
  std::vector<std::string> numbers;
};

bool is_number(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

Status bad_list(absl::string_view what) { return absl::InvalidArgumentError(what); }

Status too_many(absl::string_view number) {
  return bad_list(
      absl::StrCat("has more than ", kMostNodes, " nodes by ", number, "; shorten the list"));
}

// "3" or "01-12", which keeps the zeros of its first number.
Status expand_range(absl::string_view range, std::vector<std::string>* numbers) {
  if (range.empty()) return bad_list("has an empty range; give numbers, as in n[1-3,7]");
  const std::vector<absl::string_view> ends = absl::StrSplit(range, '-');
  const bool has_letters = std::any_of(range.begin(), range.end(), absl::ascii_isalpha);
  if (has_letters) {
    return bad_list(absl::StrCat("has a range of no numbers, ", in_quotes(range),
                                 "; give numbers, as in n[1-3,7]"));
  }
  if (ends.size() > 2 || !is_number(ends.front()) || !is_number(ends.back())) {
    return bad_list(absl::StrCat("has ", in_quotes(range),
                                 ", which is not a range; give numbers, as in n[1-3,7]"));
  }
  uint64_t first;
  uint64_t last;
  if (!absl::SimpleAtoi(ends.front(), &first)) return too_many(ends.front());
  if (!absl::SimpleAtoi(ends.back(), &last)) return too_many(ends.back());
  if (last < first) {
    return bad_list(absl::StrCat("has the range ", in_quotes(range),
                                 ", which runs backwards; give the lower number first"));
  }
  if (last - first >= kMostNodes - numbers->size()) return too_many(ends.back());
  for (uint64_t i = first;; ++i) {
    const std::string digits = absl::StrCat(i);
    const size_t width = ends.front().size();
    numbers->push_back(std::string(width - std::min(width, digits.size()), '0') + digits);
    if (i == last) return absl::OkStatus();
  }
}

// "rack[1-2]node[1-2]" -> {"rack", {1, 2}}, {"node", {1, 2}}.
StatusOr<std::vector<Part>> parse_name(absl::string_view name) {
  if (name.empty()) return bad_list("has an empty name; give names between commas");
  std::vector<Part> parts;
  while (!name.empty()) {
    const size_t open = std::min(name.find_first_of("[]"), name.size());
    Part part = {std::string(name.substr(0, open)), {}};
    if (open == name.size()) {
      if (!parts.empty()) {
        return bad_list(absl::StrCat("has the text ", in_quotes(name),
                                     " after a range; a name with ranges ends in one"));
      }
      parts.push_back(std::move(part));
      break;
    }
    if (name[open] == ']') return bad_list("has a bracket too many, \"]\"; remove it");
    const size_t close = name.find_first_of("[]", open + 1);
    if (close == absl::string_view::npos) return bad_list("ends while a bracket is open; close it");
    if (name[close] == '[') return bad_list("has brackets in brackets; a range has numbers only");
    const absl::string_view ranges = name.substr(open + 1, close - open - 1);
    for (const absl::string_view range : absl::StrSplit(ranges, ',')) {
      TESSERA_RETURN_IF_ERROR(expand_range(range, &part.numbers));
    }
    parts.push_back(std::move(part));
    name.remove_prefix(close + 1);
  }
  return parts;
}

// Adds every combination: of the ranges the last runs fastest, then the first, the second, ...
Status append_names(const std::vector<Part>& parts, std::vector<std::string>* nodes) {
  std::vector<size_t> order;  // of the ranges, the fastest first
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i + 1 < parts.size()) order.push_back(i);
  }
  order.insert(order.begin(), parts.size() - 1);
  std::vector<size_t> place(parts.size());
  for (;;) {
    if (nodes->size() >= kMostNodes) return too_many("all its ranges");
    std::string name;
    for (size_t i = 0; i < parts.size(); ++i) {
      absl::StrAppend(&name, parts[i].text,
                      parts[i].numbers.empty() ? "" : parts[i].numbers[place[i]]);
    }
    nodes->push_back(std::move(name));
    size_t digit = 0;
    for (; digit < order.size(); ++digit) {
      const size_t i = order[digit];
      if (++place[i] < parts[i].numbers.size()) break;
      place[i] = 0;
    }
    if (digit == order.size()) return absl::OkStatus();
  }
}

// The texts between commas that are not in brackets.
std::vector<absl::string_view> split_names(absl::string_view text) {
  std::vector<absl::string_view> names;
  size_t begin = 0;
  bool is_open = false;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] != ',') {
      if (text[i] == '[') is_open = true;
      if (text[i] == ']') is_open = false;
    } else if (i == text.size() || !is_open) {
      names.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  return names;
}

bool has_blank(absl::string_view text) {
  return !std::all_of(text.begin(), text.end(), absl::ascii_isgraph);
}

StatusOr<std::vector<std::string>> expand_nodes(absl::string_view text) {
  if (text.empty()) return bad_list("names no node; give names, as in n[1-3,7]");
  if (text == "(null)") return bad_list("is not a list; Slurm has not set it");
  if (has_blank(text)) return bad_list("has a blank; separate names by commas alone");
  std::vector<std::string> nodes;
  for (const absl::string_view name : split_names(text)) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<Part> parts, parse_name(name));
    TESSERA_RETURN_IF_ERROR(append_names(parts, &nodes));
  }
  return nodes;
}

// "3" or "3(x2)".
Status append_counts(absl::string_view part, std::vector<int>* counts) {
  if (part.empty()) return bad_list("has an empty part; give numbers between commas");
  const size_t open = std::min(part.find('('), part.size());
  const absl::string_view tasks = part.substr(0, open);
  int number;
  if (!is_number(tasks) || !absl::SimpleAtoi(tasks, &number)) {
    return bad_list(absl::StrCat("has ", in_quotes(part), ", where ", in_quotes(tasks),
                                 " is not a number; give tasks of a node, as in 2(x3)"));
  }
  if (number < 1 || number > kMostClients) {
    return bad_list(
        absl::StrCat("has ", number, " tasks on a node; a node of a step has 1 to ", kMostClients));
  }
  absl::string_view times = part.substr(open);
  int nodes = 1;
  if (!times.empty()) {
    const bool is_counted = absl::ConsumePrefix(&times, "(x") && absl::ConsumeSuffix(&times, ")");
    if (!is_counted || !is_number(times) || !absl::SimpleAtoi(times, &nodes)) {
      return bad_list(absl::StrCat("has ", in_quotes(part.substr(open)), " after ", number,
                                   "; give the count of nodes once, as in 2(x3)"));
    }
    if (nodes < 1)
      return bad_list(absl::StrCat("has ", in_quotes(part), ", which stands for no node; drop it"));
  }
  if (static_cast<uint64_t>(nodes) > kMostNodes - counts->size()) return too_many(times);
  counts->insert(counts->end(), static_cast<size_t>(nodes), number);
  return absl::OkStatus();
}

StatusOr<std::vector<int>> expand_counts(absl::string_view text) {
  if (text.empty()) return bad_list("has no number; give tasks of each node, as in 2(x3),1");
  if (has_blank(text)) return bad_list("has a blank; separate numbers by commas alone");
  std::vector<int> counts;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    TESSERA_RETURN_IF_ERROR(append_counts(part, &counts));
  }
  return counts;
}

// "node list "n[3-1]" has ...".
Status with_subject(const Status& status, absl::string_view subject, absl::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat(subject, " ", in_quotes(text), " ", status.message()));
}

}  // namespace

StatusOr<std::vector<std::string>> expand_node_list(absl::string_view text) {
  StatusOr<std::vector<std::string>> nodes = expand_nodes(text);
  if (!nodes.ok()) return with_subject(nodes.status(), "node list", text);
  return nodes;
}

StatusOr<std::vector<int>> expand_tasks_per_node(absl::string_view text) {
  StatusOr<std::vector<int>> counts = expand_counts(text);
  if (!counts.ok()) return with_subject(counts.status(), "list of tasks per node", text);
  return counts;
}

}  // namespace tessera::cluster
