// SPDX-License-Identifier: Apache-2.0
//
// Costs, and the simplest baseline.
#include "benchmarks/baselines.h"

#include <algorithm>
#include <optional>

#include "benchmarks/atoms.h"

namespace tessera::benchmarks {
namespace {

int64_t common_elements(const Box& a, const Box& b) {
  int64_t elements = 1;
  for (size_t dim = 0; dim < a.sizes.size(); ++dim) {
    const int64_t first = std::max(a.offsets[dim], b.offsets[dim]);
    const int64_t end = std::min(a.offsets[dim] + a.sizes[dim], b.offsets[dim] + b.sizes[dim]);
    elements *= std::max<int64_t>(0, end - first);
  }
  return elements;
}

// The most elements of its new box that a device lacks.
int64_t most_received(const Layout& from, const Layout& to, const Shape& shape) {
  int64_t most = 0;
  for (int64_t position = 0; position < to.mesh().size(); ++position) {
    const Box box = to.box(shape, position);
    const std::optional<int64_t> old =
        from.mesh().position_of_device(to.mesh().device_ids()[position]);
    const int64_t kept = old.has_value() ? common_elements(from.box(shape, *old), box) : 0;
    most = std::max(most, box.num_elements() - kept);
  }
  return most;
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

StatusOr<Sequence> gather_then_slice(const Layout& from, const Layout& to, const Shape&) {
  const StatusOr<Atoms> atoms = Atoms::create(from, to);
  if (!atoms.ok()) {
    if (from.is_partial() || to.is_partial()) return atoms.status();
    TESSERA_ASSIGN_OR_RETURN(const Layout whole, Layout::replicated(to.mesh(), to.rank()));
    return Sequence{from, whole, to};
  }
  AtomLists common(atoms->from.size());
  for (size_t dim = 0; dim < common.size(); ++dim) {
    const std::vector<int>& a = atoms->from[dim];
    const std::vector<int>& b = atoms->to[dim];
    const auto differ = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
    common[dim].assign(a.begin(), differ.first);
  }
  return Sequence{from, atoms->layout(common), to};
}

}  // namespace tessera::benchmarks
