// SPDX-License-Identifier: Apache-2.0
//
// Links and their costs.
#include "relayout/topology.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/base/casts.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/stable_hash.h"

namespace tessera {
namespace {

constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

Status validate(LinkClass link, const LinkCost& cost) {
  const std::pair<absl::string_view, double> numbers[] = {
      {"latency", cost.latency_s}, {"seconds per byte", cost.seconds_per_byte}};
  for (const auto& [name, number] : numbers) {
    if (std::isfinite(number) && number >= 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("the ", name, " of ", link_class_name(link),
                                                   " links is ", number,
                                                   "; give a finite number of at least 0"));
  }
  return absl::OkStatus();
}

Status validate(const LinkCosts& costs) {
  TESSERA_RETURN_IF_ERROR(validate(LinkClass::kProcess, costs.process));
  TESSERA_RETURN_IF_ERROR(validate(LinkClass::kHost, costs.host));
  return validate(LinkClass::kNetwork, costs.network);
}

std::string cost_text(LinkClass link, const LinkCost& cost) {
  return absl::StrFormat("%s %g us, %g GB/s", link_class_name(link), cost.latency_s * 1e6,
                         1e-9 / cost.seconds_per_byte);
}

bool all_equal(const std::vector<int>& values) {
  for (int value : values) {
    if (value != values[0]) return false;
  }
  return true;
}

bool all_different(const std::vector<int>& values) {
  return absl::flat_hash_set<int>(values.begin(), values.end()).size() == values.size();
}

// Numbers the names in the order of their first occurrence.
std::vector<int> numbered(const std::vector<int>& names) {
  absl::flat_hash_map<int, int> numbers;
  std::vector<int> result;
  for (const int name : names) {
    const int next = static_cast<int>(numbers.size());
    result.push_back(numbers.try_emplace(name, next).first->second);
  }
  return result;
}

// Whether the numbers are 0, 1, 2, ..., each `block` times; the last one may be there less often.
bool is_blocks(const std::vector<int>& numbers, int64_t block) {
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] != static_cast<int64_t>(i) / block) return false;
  }
  return block > 0;
}

// The cost as whole numbers, for the hash; -0 and 0 are equal.
std::array<uint64_t, 2> bits(const LinkCost& cost) {
  return {absl::bit_cast<uint64_t>(cost.latency_s + 0.0),
          absl::bit_cast<uint64_t>(cost.seconds_per_byte + 0.0)};
}

}  // namespace

absl::string_view link_class_name(LinkClass link) {
  switch (link) {
    case LinkClass::kProcess:
      return "process";
    case LinkClass::kHost:
      return "host";
    case LinkClass::kNetwork:
      return "network";
  }
  return "unknown";
}

struct Topology::Rep {
  LinkCosts costs;
  // uniform(): kAll means that there is only one.
  int64_t devices_per_process = 1;
  int64_t devices_per_host = kAll;
  // of_devices().
  bool listed = false;
  std::vector<int> process_of;
  std::vector<int> host_of;

  std::optional<LinkClass> only_link() const {
    if (!listed) {
      if (devices_per_process == kAll) return LinkClass::kProcess;
      if (devices_per_host == 1) return LinkClass::kNetwork;
      if (devices_per_process == 1 && devices_per_host == kAll) return LinkClass::kHost;
      return std::nullopt;
    }
    if (process_of.empty() || all_equal(process_of)) return LinkClass::kProcess;
    if (all_different(host_of)) return LinkClass::kNetwork;
    if (all_equal(host_of) && all_different(process_of)) return LinkClass::kHost;
    return std::nullopt;
  }
  std::optional<LinkClass> only;  // only_link(), found once.
};

Topology::Topology() {
  static const auto* const kDefault = [] {
    auto rep = std::make_shared<Rep>();
    rep->only = rep->only_link();
    return new std::shared_ptr<const Rep>(std::move(rep));
  }();
  rep_ = *kDefault;
}

StatusOr<Topology> Topology::uniform(int64_t devices_per_process, int64_t devices_per_host,
                                     const LinkCosts& costs) {
  TESSERA_RETURN_IF_ERROR(validate(costs));
  if (devices_per_process < 1 || devices_per_host < 1) {
    return absl::InvalidArgumentError(absl::StrCat("a topology has ", devices_per_process,
                                                   " devices per process and ", devices_per_host,
                                                   " per host; give at least 1 of each"));
  }
  if (devices_per_host % devices_per_process != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a topology has ", devices_per_process, " devices per process and ", devices_per_host,
        " per host; a host holds whole processes, give a multiple of ", devices_per_process));
  }
  auto rep = std::make_shared<Rep>();
  rep->costs = costs;
  rep->devices_per_process = devices_per_process;
  rep->devices_per_host = devices_per_host;
  rep->only = rep->only_link();
  return Topology(std::move(rep));
}

StatusOr<Topology> Topology::of_devices(std::vector<int> process_of, std::vector<int> host_of,
                                        const LinkCosts& costs) {
  TESSERA_RETURN_IF_ERROR(validate(costs));
  if (process_of.size() != host_of.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a topology has the processes of ",
                                                   process_of.size(), " devices and the hosts of ",
                                                   host_of.size(), "; give both of each device"));
  }
  absl::flat_hash_map<int, int> host_of_process;
  for (size_t device = 0; device < process_of.size(); ++device) {
    const int host = host_of_process.try_emplace(process_of[device], host_of[device]).first->second;
    if (host == host_of[device]) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("process ", process_of[device], " of the topology is on hosts ", host, " and ",
                     host_of[device], " (device ", device, "); a process is on one host"));
  }
  auto rep = std::make_shared<Rep>();
  rep->costs = costs;
  rep->listed = true;
  rep->process_of = std::move(process_of);
  rep->host_of = std::move(host_of);
  rep->only = rep->only_link();
  return Topology(std::move(rep));
}

LinkClass Topology::link(int device_a, int device_b) const {
  if (device_a == device_b) return LinkClass::kProcess;
  if (rep_->listed) {
    const int known = static_cast<int>(rep_->process_of.size());
    if (device_a >= known || device_b >= known) return LinkClass::kNetwork;
    if (rep_->process_of[device_a] == rep_->process_of[device_b]) return LinkClass::kProcess;
    return rep_->host_of[device_a] == rep_->host_of[device_b] ? LinkClass::kHost
                                                              : LinkClass::kNetwork;
  }
  const auto share = [&](int64_t size) { return device_a / size == device_b / size; };
  if (share(rep_->devices_per_process)) return LinkClass::kProcess;
  return share(rep_->devices_per_host) ? LinkClass::kHost : LinkClass::kNetwork;
}

int64_t Topology::host(int device_id) const {
  if (!rep_->listed) return device_id / rep_->devices_per_host;
  const bool is_listed = device_id < static_cast<int>(rep_->host_of.size());
  // The numbers given are ints: the others are above all of them.
  return is_listed ? rep_->host_of[device_id] : (int64_t{1} << 32) + device_id;
}

Topology Topology::without_processes() const {
  auto rep = std::make_shared<Rep>();
  rep->costs = rep_->costs;
  rep->devices_per_host = rep_->devices_per_host;
  if (rep_->listed) {
    const std::vector<int> hosts = numbered(rep_->host_of);
    const int64_t block = std::count(hosts.begin(), hosts.end(), 0);
    if (is_blocks(hosts, block)) {
      rep->devices_per_host = block;
    } else {
      rep->listed = true;
      rep->host_of = hosts;
      rep->process_of.resize(hosts.size());
      std::iota(rep->process_of.begin(), rep->process_of.end(), 0);
    }
  }
  rep->only = rep->only_link();
  return Topology(std::move(rep));
}

LinkCost Topology::cost(LinkClass link) const {
  switch (link) {
    case LinkClass::kProcess:
      return rep_->costs.process;
    case LinkClass::kHost:
      return rep_->costs.host;
    case LinkClass::kNetwork:
      break;
  }
  return rep_->costs.network;
}

const LinkCosts& Topology::costs() const { return rep_->costs; }

std::optional<int64_t> Topology::num_devices() const {
  if (!rep_->listed) return std::nullopt;
  return static_cast<int64_t>(rep_->process_of.size());
}

std::optional<LinkClass> Topology::only_link() const { return rep_->only; }

std::pair<int64_t, int64_t> Topology::block_sizes() const {
  if (rep_->listed) return {1, 1};
  return {rep_->devices_per_process, rep_->devices_per_host};
}

std::string Topology::to_string() const {
  const auto list = [](const std::vector<int>& values) { return absl::StrJoin(values, ","); };
  std::string text;
  if (rep_->listed) {
    absl::StrAppend(&text, "processes ", list(rep_->process_of), ", hosts ", list(rep_->host_of));
  } else {
    absl::StrAppend(&text, rep_->devices_per_process,
                    rep_->devices_per_process == 1 ? " device" : " devices", " per process, ");
    if (rep_->devices_per_host == kAll) {
      absl::StrAppend(&text, "one host");
    } else {
      absl::StrAppend(&text, rep_->devices_per_host, " per host");
    }
  }
  absl::StrAppend(&text, "; ", cost_text(LinkClass::kProcess, rep_->costs.process), ", ",
                  cost_text(LinkClass::kHost, rep_->costs.host), ", ",
                  cost_text(LinkClass::kNetwork, rep_->costs.network));
  return text;
}

uint64_t Topology::hash() const {
  const int64_t numbers[] = {rep_->listed, rep_->devices_per_process, rep_->devices_per_host};
  uint64_t hash = stable_hash(absl::MakeConstSpan(numbers));
  hash = stable_hash(absl::MakeConstSpan(rep_->process_of), hash);
  hash = stable_hash(absl::MakeConstSpan(rep_->host_of), hash);
  for (const LinkCost& cost : {rep_->costs.process, rep_->costs.host, rep_->costs.network}) {
    hash = stable_hash(absl::MakeConstSpan(bits(cost)), hash);
  }
  return hash;
}

bool operator==(const Topology& a, const Topology& b) {
  return a.rep_ == b.rep_ ||
         (a.rep_->listed == b.rep_->listed && a.rep_->costs == b.rep_->costs &&
          a.rep_->devices_per_process == b.rep_->devices_per_process &&
          a.rep_->devices_per_host == b.rep_->devices_per_host &&
          a.rep_->process_of == b.rep_->process_of && a.rep_->host_of == b.rep_->host_of);
}

}  // namespace tessera
