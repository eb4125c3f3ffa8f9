// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/read_layout.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "relayout/host_axes.h"
#include "relayout/sub_axes.h"

namespace tessera::checkpoint::internal {
namespace {

using tessera::internal::all_sub_axes;
using tessera::internal::complement;
using tessera::internal::Digits;
using tessera::internal::digits_of;
using tessera::internal::HostAxes;
using tessera::internal::make_layout;
using tessera::internal::num_values;
using tessera::internal::split_by_host;
using tessera::internal::SubAxes;
using tessera::internal::value_at;

// Removes the minor parts of a dim along which devices stay on their host, and returns them in
// their order.
SubAxes take_minor_intra_host(const Mesh& mesh, const Topology& topology, SubAxes* dim) {
  SubAxes taken;
  while (!dim->empty()) {
    const SubAxis part = dim->back();
    const HostAxes axes = split_by_host(mesh, {part}, topology);
    if (axes.intra_host.empty()) break;
    const SubAxis intra_host = axes.intra_host[0];
    // An inter-host sub-axis minor to it.
    if (intra_host.pre * intra_host.size != part.pre * part.size) break;
    taken.insert(taken.begin(), intra_host);
    dim->pop_back();
    if (axes.inter_host.empty()) continue;
    dim->push_back(axes.inter_host[0]);
    break;
  }
  return taken;
}

// The first dim with an index for each share; else the longest.
size_t dim_to_split(absl::Span<const int64_t> sizes, int64_t num_shares) {
  const auto long_enough = [&](int64_t size) { return size >= num_shares; };
  const auto first = std::find_if(sizes.begin(), sizes.end(), long_enough);
  return (first != sizes.end() ? first : std::max_element(sizes.begin(), sizes.end())) -
         sizes.begin();
}

// Whether no two devices of a host hold the same shard.
bool each_shard_once_per_host(const Layout& layout, const Topology& topology) {
  const Mesh& mesh = layout.mesh();
  const Digits digits = digits_of(mesh, all_sub_axes(layout.dim_axes()));
  absl::flat_hash_set<std::pair<int64_t, int64_t>> seen;
  for (int64_t position = 0; position < mesh.size(); ++position) {
    const int64_t host = topology.host(*mesh.device_at(position));
    if (!seen.insert({host, value_at(digits, position)}).second) return false;
  }
  return true;
}

}  // namespace

StatusOr<Layout> read_layout(const Layout& target, const Shape& shape, const Topology& topology) {
  TESSERA_RETURN_IF_ERROR(target.validate_shape(shape));
  const Layout reduced = target.without_partial();
  if (shape.empty()) return reduced;
  const Mesh& mesh = target.mesh();

  std::vector<SubAxes> dims(reduced.dim_axes().begin(), reduced.dim_axes().end());
  std::vector<SubAxes> taken;
  for (SubAxes& dim : dims) taken.push_back(take_minor_intra_host(mesh, topology, &dim));
  const SubAxes replicated =
      split_by_host(mesh, complement(mesh, all_sub_axes(reduced.dim_axes())), topology).intra_host;

  // The sizes of the largest box that the devices of a host share.
  std::vector<int64_t> sizes = shape;
  for (size_t d = 0; d < sizes.size(); ++d) {
    sizes[d] = shard_interval(shape[d], num_values(digits_of(mesh, dims[d])), 0).second;
  }
  const int64_t num_shares =
      num_values(digits_of(mesh, all_sub_axes(taken))) * num_values(digits_of(mesh, replicated));
  const size_t shared = dim_to_split(sizes, num_shares);
  // The parts of that dim first: where only they were taken, the layout is the target.
  std::swap(taken[0], taken[shared]);
  for (const SubAxes& parts : taken) {
    dims[shared].insert(dims[shared].end(), parts.begin(), parts.end());
  }
  dims[shared].insert(dims[shared].end(), replicated.begin(), replicated.end());

  Layout result = make_layout(mesh, dims, {}, std::nullopt);
  if (each_shard_once_per_host(result, topology)) return result;
  return absl::UnimplementedError(
      absl::StrCat("reading each byte once per host is implemented where the hosts of mesh ",
                   tessera::axes_to_string(mesh.axes()),
                   " differ by sub-axes of it, and they do not; use Reads::kDirect"));
}

}  // namespace tessera::checkpoint::internal
