// SPDX-License-Identifier: Apache-2.0
//
// Costs, and the baseline.
#include "benchmarks/baselines.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace tessera::benchmarks {
namespace {

// The most elements that a device lacks of its new box.
int64_t most_received(const Layout& from, const Layout& to, const Shape& shape) {
  int64_t most = 0;
  for (int64_t position = 0; position < to.mesh().size(); ++position) {
    const Box box = to.box(shape, position);
    const std::optional<int64_t> old =
        from.mesh().position_of_device(to.mesh().device_ids()[position]);
    const int64_t kept = old.has_value() ? intersect(from.box(shape, *old), box).num_elements() : 0;
    most = std::max(most, box.num_elements() - kept);
  }
  return most;
}

// The major axes that split a dim under both layouts.
DimSharding common_front(const Mesh& mesh, absl::Span<const SubAxis> from,
                         absl::Span<const SubAxis> to) {
  DimSharding common;
  for (size_t i = 0; i < std::min(from.size(), to.size()); ++i) {
    const SubAxis& a = from[i];
    const SubAxis& b = to[i];
    if (a.axis != b.axis || a.pre != b.pre) break;
    const int64_t size = std::gcd(a.size, b.size);
    common.push_back(absl::StrCat(mesh.axes()[a.axis].name, ":(", a.pre, ")", size));
    if (a.size != b.size) break;
  }
  return common;
}

}  // namespace

Cost cost_of(const Sequence& sequence, const Shape& shape) {
  Cost cost;
  for (size_t i = 1; i < sequence.size(); ++i) {
    const int64_t received = most_received(sequence[i - 1], sequence[i], shape);
    cost.received_elements += received;
    cost.num_collectives += received > 0 ? 1 : 0;
  }
  return cost;
}

double time_us(const Cost& cost, int64_t element_bytes, const Link& link) {
  return link.alpha_us * cost.num_collectives +
         static_cast<double>(cost.received_elements * element_bytes) / link.bytes_per_us;
}

StatusOr<Sequence> gather_then_slice(const Layout& from, const Layout& to) {
  std::vector<DimSharding> common(to.rank());
  if (from.mesh() == to.mesh()) {
    for (int dim = 0; dim < to.rank(); ++dim) {
      common[dim] = common_front(to.mesh(), from.dim_axes()[dim], to.dim_axes()[dim]);
    }
  }
  TESSERA_ASSIGN_OR_RETURN(Layout gathered, Layout::create(to.mesh(), std::move(common)));
  return Sequence{from, std::move(gathered), to};
}

}  // namespace tessera::benchmarks
