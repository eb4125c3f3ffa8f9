// SPDX-License-Identifier: Apache-2.0
#include "relayout/host_axes.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "relayout/factored_view.h"

namespace tessera::internal {
namespace {

// Descending.
std::vector<int64_t> divisors(int64_t number) {
  std::vector<int64_t> small;
  std::vector<int64_t> large;
  for (int64_t i = 1; i * i <= number; ++i) {
    if (number % i != 0) continue;
    large.push_back(number / i);
    if (i * i != number) small.push_back(i);
  }
  large.insert(large.end(), small.rbegin(), small.rend());
  return large;
}

// The largest part of `part` at its minor end, or else at its major end, that is near.
std::optional<SubAxis> near_part(const Mesh& mesh, const SubAxis& part, const Topology& topology) {
  const int64_t weight = digits_of(mesh, {part})[0].weight;
  const bool blocks = has_blocks(mesh, topology);
  for (const int64_t near : divisors(part.size)) {
    if (near == 1) break;
    const int64_t far = part.size / near;
    if (is_intra_host(mesh, {near, weight}, topology)) {
      return SubAxis{part.axis, part.pre * far, near};
    }
    // Blocks of devices are at minor ends.
    if (!blocks && is_intra_host(mesh, {near, weight * far}, topology)) {
      return SubAxis{part.axis, part.pre, near};
    }
  }
  return std::nullopt;
}

// Whether positions that differ in `far` and in nothing else are on as many hosts.
bool tell_hosts_apart(const Mesh& mesh, const SubAxes& far, const Topology& topology) {
  const Digits digits = digits_of(mesh, far);
  if (has_blocks(mesh, topology)) {
    const int64_t host = topology.block_sizes().second;
    return std::all_of(digits.begin(), digits.end(),
                       [host](const Digit& digit) { return digit.weight % host == 0; });
  }
  const int64_t count = num_values(digits);
  std::vector<int64_t> hosts(count);
  for (int64_t position = 0; position < mesh.size(); ++position) {
    if (value_at(digits, position) != 0) continue;
    for (int64_t i = 0; i < count; ++i) {
      hosts[i] = topology.host(mesh.device_ids()[position + offset_of(digits, i)]);
    }
    std::sort(hosts.begin(), hosts.end());
    if (std::adjacent_find(hosts.begin(), hosts.end()) != hosts.end()) return false;
  }
  return true;
}

}  // namespace

bool is_intra_host(const Mesh& mesh, const Digit& digit, const Topology& topology) {
  return link_of_digit(mesh, digit, topology) != LinkClass::kNetwork;
}

HostAxes split_by_host(const Mesh& mesh, const SubAxes& parts, const Topology& topology) {
  HostAxes result;
  for (const SubAxis& part : parts) {
    const std::optional<SubAxis> near = near_part(mesh, part, topology);
    if (near.has_value()) result.intra_host.push_back(*near);
    const int64_t far = part.size / (near.has_value() ? near->size : 1);
    if (far == 1) continue;
    const bool at_major_end = near.has_value() && near->pre == part.pre;
    result.inter_host.push_back({part.axis, at_major_end ? part.pre * near->size : part.pre, far});
  }
  return result;
}

std::optional<HostAxes> terms_by_host(const Mesh& mesh, const SubAxes& partial,
                                      const Topology& topology) {
  const std::optional<LinkClass> link = topology.only_link();
  if (link.has_value()) return std::nullopt;
  HostAxes axes = split_by_host(mesh, partial, topology);
  if (axes.intra_host.empty() || axes.inter_host.empty()) return std::nullopt;
  if (!tell_hosts_apart(mesh, axes.inter_host, topology)) return std::nullopt;
  return axes;
}

}  // namespace tessera::internal
