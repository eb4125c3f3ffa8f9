// SPDX-License-Identifier: Apache-2.0
#include "tools/plan_tool/topology_json.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/json_syntax.h"
#include "base/text.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

using nlohmann::json;

// One object of the file; `prefix` is its path, as in "links.host.".
class Fields {
 public:
  Fields(absl::string_view file, std::string prefix, const json& object)
      : file_(file), prefix_(std::move(prefix)), object_(object) {}

  bool has(const char* name) const { return object_.contains(name); }

  Status refuse(const char* name, absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(
        "topology ", file_, ": ", tessera::in_quotes(absl::StrCat(prefix_, name)), " ", what));
  }

  // "is VALUE; give WHAT", or "is missing; give WHAT".
  Status wrong(const char* name, absl::string_view expected) const {
    if (!has(name)) return refuse(name, absl::StrCat("is missing; give ", expected));
    std::string value = object_.at(name).dump(-1, ' ', true, json::error_handler_t::replace);
    if (value.size() > 60) value = absl::StrCat(value.substr(0, 57), "...");
    return refuse(name, absl::StrCat("is ", value, "; give ", expected));
  }

  Status only(const std::vector<std::string>& names) const {
    for (const auto& item : object_.items()) {
      bool known = false;
      for (const std::string& name : names) known = known || name == item.key();
      if (known) continue;
      return refuse(item.key().c_str(),
                    absl::StrCat("is not a field of a topology; fields here are ",
                                 quoted_list(names), did_you_mean(item.key(), names)));
    }
    return absl::OkStatus();
  }

  StatusOr<Fields> object(const char* name, absl::string_view expected) const {
    if (!has(name) || !object_.at(name).is_object()) return wrong(name, expected);
    return Fields(file_, absl::StrCat(prefix_, name, "."), object_.at(name));
  }

  StatusOr<double> number(const char* name, bool is_zero_allowed) const {
    const char* const expected =
        is_zero_allowed ? "a number of at least 0" : "a number greater than 0";
    if (!has(name) || !object_.at(name).is_number()) return wrong(name, expected);
    const double value = object_.at(name).get<double>();
    if (!std::isfinite(value) || value < 0 || (value == 0 && !is_zero_allowed)) {
      return wrong(name, expected);
    }
    return value;
  }

  StatusOr<int64_t> count(const char* name) const {
    constexpr int64_t kMost = std::numeric_limits<int>::max();
    if (!has(name) || !is_whole(object_.at(name), 1, kMost)) {
      return wrong(name, absl::StrCat("a whole number from 1 to ", kMost));
    }
    return object_.at(name).get<int64_t>();
  }

  StatusOr<std::vector<int>> ids(const char* name) const {
    constexpr char kExpected[] = "a list of whole numbers of at least 0, one per device";
    if (!has(name) || !object_.at(name).is_array()) return wrong(name, kExpected);
    std::vector<int> result;
    for (const json& id : object_.at(name)) {
      if (!is_whole(id, 0, std::numeric_limits<int>::max())) return wrong(name, kExpected);
      result.push_back(id.get<int>());
    }
    return result;
  }

 private:
  static bool is_whole(const json& value, int64_t least, int64_t most) {
    if (!value.is_number_integer()) return false;
    // nlohmann keeps a number beyond int64 as unsigned; read as signed it would be negative.
    if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(most)) {
      return false;
    }
    return least <= value.get<int64_t>() && value.get<int64_t>() <= most;
  }

  absl::string_view file_;
  std::string prefix_;
  const json& object_;
};

StatusOr<LinkCost> read_cost(const Fields& links, const char* name) {
  TESSERA_ASSIGN_OR_RETURN(const Fields link,
                           links.object(name, "an object with \"latency_s\" and \"bytes_per_s\""));
  TESSERA_RETURN_IF_ERROR(link.only({"latency_s", "bytes_per_s"}));
  TESSERA_ASSIGN_OR_RETURN(const double latency_s, link.number("latency_s", true));
  TESSERA_ASSIGN_OR_RETURN(const double bytes_per_s, link.number("bytes_per_s", false));
  const double seconds_per_byte = 1 / bytes_per_s;
  // A denormal rate has no finite inverse.
  if (!std::isfinite(seconds_per_byte)) {
    return link.wrong("bytes_per_s", "a number whose inverse is finite");
  }
  return LinkCost{latency_s, seconds_per_byte};
}

StatusOr<LinkCosts> read_costs(const Fields& root) {
  TESSERA_ASSIGN_OR_RETURN(
      const Fields links,
      root.object("links", "an object with \"process\", \"host\" and \"network\""));
  TESSERA_RETURN_IF_ERROR(links.only({"process", "host", "network"}));
  LinkCosts costs;
  TESSERA_ASSIGN_OR_RETURN(costs.process, read_cost(links, "process"));
  TESSERA_ASSIGN_OR_RETURN(costs.host, read_cost(links, "host"));
  TESSERA_ASSIGN_OR_RETURN(costs.network, read_cost(links, "network"));
  return costs;
}

StatusOr<Topology> read_devices(const Fields& root, const LinkCosts& costs) {
  const bool is_listed = root.has("process_of") || root.has("host_of");
  if (!is_listed) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t per_process, root.count("devices_per_process"));
    TESSERA_ASSIGN_OR_RETURN(const int64_t per_host, root.count("devices_per_host"));
    return Topology::uniform(per_process, per_host, costs);
  }
  for (const char* name : {"devices_per_process", "devices_per_host"}) {
    if (!root.has(name)) continue;
    return root.refuse(name,
                       "stands beside \"process_of\" or \"host_of\"; give numbers a process "
                       "and a host, or lists, not both");
  }
  TESSERA_ASSIGN_OR_RETURN(std::vector<int> process_of, root.ids("process_of"));
  TESSERA_ASSIGN_OR_RETURN(std::vector<int> host_of, root.ids("host_of"));
  return Topology::of_devices(std::move(process_of), std::move(host_of), costs);
}

}  // namespace

StatusOr<Topology> parse_topology(absl::string_view text, absl::string_view file) {
  const auto refuse = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("topology ", file, ": ", what));
  };
  const std::string problem = json_problem(text, "an object as in tools/topologies/h100.json");
  if (!problem.empty()) return refuse(problem);
  const json value = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) {
    return refuse("is not a JSON object; expected one as in tools/topologies/h100.json");
  }
  const Fields root(file, "", value);
  TESSERA_RETURN_IF_ERROR(root.only({"description", "devices_per_process", "devices_per_host",
                                     "process_of", "host_of", "links"}));
  TESSERA_ASSIGN_OR_RETURN(const LinkCosts costs, read_costs(root));
  const StatusOr<Topology> topology = read_devices(root, costs);
  if (topology.ok() || topology.status().message().substr(0, 9) == "topology ") return topology;
  return refuse(topology.status().message());
}

}  // namespace tessera
