// SPDX-License-Identifier: Apache-2.0
#include "relayout/testing/small_relayouts.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "relayout/plan.h"
#include "relayout/testing/plan_oracle.h"

namespace tessera::testing {
namespace {

constexpr int kMaxRankOfCases = 3;

void append_meshes(std::vector<MeshAxis> axes, int max_axes, int64_t max_devices,
                   std::vector<Mesh>* meshes) {
  if (!axes.empty()) meshes->push_back(*Mesh::create(axes));
  if (static_cast<int>(axes.size()) == max_axes) return;
  const std::string name(1, "xyzwuv"[axes.size()]);
  for (int64_t size = 1; size <= max_devices; ++size) {
    axes.push_back({name, size});
    append_meshes(axes, max_axes, max_devices / size, meshes);
    axes.pop_back();
  }
}

// The ways to write `size` as a product of primes, order included: 12 = 2*2*3, 2*3*2, 3*2*2.
std::vector<std::vector<int64_t>> prime_orders(int64_t size) {
  std::vector<int64_t> primes;
  for (int64_t p = 2; size > 1; ++p) {
    for (; size % p == 0; size /= p) primes.push_back(p);
  }
  std::vector<std::vector<int64_t>> orders;
  do {
    orders.push_back(primes);
  } while (std::next_permutation(primes.begin(), primes.end()));
  return orders;
}

// Extends each list of atoms by the atoms of another axis, in each order of its primes.
std::vector<std::vector<std::string>> with_axis(const std::vector<std::vector<std::string>>& lists,
                                                const MeshAxis& axis) {
  std::vector<std::vector<std::string>> result;
  for (const std::vector<int64_t>& order : prime_orders(axis.size)) {
    for (std::vector<std::string> atoms : lists) {
      int64_t pre = 1;
      for (const int64_t prime : order) {
        atoms.push_back(absl::StrCat(axis.name, ":(", pre, ")", prime));
        pre *= prime;
      }
      result.push_back(std::move(atoms));
    }
  }
  return result;
}

// Gives each atom from `next` on a place, in all ways.
class LayoutLister {
 public:
  LayoutLister(const Mesh& mesh, int rank, const std::vector<ReduceOp>& ops)
      : mesh_(mesh), ops_(ops), dims_(rank) {}

  void add(const std::vector<std::string>& atoms) { place(atoms, 0); }
  std::vector<Layout> take() { return std::move(layouts_); }

 private:
  void place(const std::vector<std::string>& atoms, size_t next) {
    if (next == atoms.size()) return finish();
    place(atoms, next + 1);
    for (DimSharding& dim : dims_) {
      for (size_t at = 0; at <= dim.size(); ++at) {
        dim.insert(dim.begin() + static_cast<int64_t>(at), atoms[next]);
        place(atoms, next + 1);
        dim.erase(dim.begin() + static_cast<int64_t>(at));
      }
    }
    if (ops_.empty()) return;
    partial_.push_back(atoms[next]);
    place(atoms, next + 1);
    partial_.pop_back();
  }

  void finish() {
    const Layout whole = *Layout::create(mesh_, dims_);
    if (partial_.empty()) return keep(whole);
    for (const ReduceOp op : ops_) keep(*whole.with_partial(partial_, op));
  }

  void keep(const Layout& layout) {
    if (seen_.insert(layout.to_string()).second) layouts_.push_back(layout);
  }

  const Mesh& mesh_;
  const std::vector<ReduceOp>& ops_;
  std::vector<DimSharding> dims_;
  std::vector<std::string> partial_;
  std::set<std::string> seen_;
  std::vector<Layout> layouts_;
};

// The peak that an allocator would measure: the source stays, a step allocates its result, and the
// result of the step before is freed after it.
int64_t high_water_bytes(const RelayoutPlan& plan) {
  std::set<int> devices;
  for (const Layout* layout : {&plan.from(), &plan.to()}) {
    devices.insert(layout->mesh().device_ids().begin(), layout->mesh().device_ids().end());
  }
  const auto bytes = [&](const Layout& layout, const Shape& shape, int device) -> int64_t {
    const std::optional<int64_t> position = layout.mesh().position_of_device(device);
    if (!position.has_value()) return 0;
    return layout.box(shape, *position).num_elements() * dtype_size(plan.dtype());
  };
  int64_t mark = 0;
  for (const int device : devices) {
    int64_t live = bytes(plan.from(), plan.shape(), device);
    mark = std::max(mark, live);
    int64_t intermediate = 0;
    for (const PlanStep& step : plan.steps()) {
      const int64_t made = bytes(step.to(), step.shape(), device);
      live += made;
      mark = std::max(mark, live);
      live -= intermediate;
      intermediate = made;
    }
  }
  return mark;
}

// The terms of a partial tensor, or the elements: what every reduction takes exactly in a double.
double small_term(int64_t flat, int64_t term) {
  return static_cast<double>((flat * 31 + term * 17) % 64 * 840);
}

std::string check_return_trip(const RelayoutPlan& there, const RelayoutPlan& back) {
  std::string problem;
  const DeviceValues before = deal(there.from(), there.shape(), small_term);
  const DeviceValues after = run_plan(back, run_plan(there, before, &problem), &problem);
  const bool partial = there.from().is_partial() || there.to().is_partial();
  const bool same = partial ? assemble(there.from(), there.shape(), after, &problem) ==
                                  assemble(there.from(), there.shape(), before, &problem)
                            : after == before;
  if (problem.empty() && !same) return "the way back is not the identity";
  return problem;
}

}  // namespace

std::string RelayoutCase::to_string() const {
  return absl::StrCat(from.to_string_with_mesh(), " to ", to.to_string_with_mesh(), ", shape ",
                      shape_to_string(shape));
}

std::vector<Mesh> small_meshes(int max_axes, int64_t max_devices) {
  std::vector<Mesh> meshes;
  append_meshes({}, max_axes, max_devices, &meshes);
  return meshes;
}

std::vector<Layout> every_layout(const Mesh& mesh, int rank, const std::vector<ReduceOp>& ops) {
  std::vector<std::vector<std::string>> atom_lists = {{}};
  for (const MeshAxis& axis : mesh.axes()) atom_lists = with_axis(atom_lists, axis);
  LayoutLister lister(mesh, rank, ops);
  for (const std::vector<std::string>& atoms : atom_lists) lister.add(atoms);
  return lister.take();
}

SmallRelayouts::SmallRelayouts(std::vector<ReduceOp> ops) : ops_(std::move(ops)) {
  static constexpr int64_t kUneven[kMaxRankOfCases] = {5, 7, 3};
  for (const Mesh& mesh : small_meshes(3, 8)) {
    for (int rank = 0; rank <= kMaxRankOfCases; ++rank) {
      Block block = {mesh,
                     rank,
                     static_cast<int64_t>(every_layout(mesh, rank, ops_).size()),
                     {Shape(rank, mesh.size())},
                     size_};
      if (rank > 0) block.shapes.push_back(Shape(kUneven, kUneven + rank));
      size_ += block.size();
      blocks_.push_back(std::move(block));
    }
  }
}

void SmallRelayouts::for_each(int64_t first, int64_t stride,
                              absl::FunctionRef<bool(int64_t, const RelayoutCase&)> fn) const {
  int64_t number = first;
  for (const Block& block : blocks_) {
    if (number >= block.first + block.size()) continue;
    const std::vector<Layout> layouts = every_layout(block.mesh, block.rank, ops_);
    for (; number < block.first + block.size(); number += stride) {
      const int64_t at = number - block.first;
      const int64_t pair = at % (block.num_layouts * block.num_layouts);
      const RelayoutCase relayout = {layouts[pair / block.num_layouts],
                                     layouts[pair % block.num_layouts],
                                     block.shapes[at / (block.num_layouts * block.num_layouts)]};
      if (!fn(number, relayout)) return;
    }
  }
}

std::string check_relayout_exhaustively(const RelayoutCase& relayout) {
  const auto& [from, to, shape] = relayout;
  std::string problem = check_relayout(from, to, shape).problem;
  if (problem.empty() && from.is_partial()) {
    problem = check_relayout(from, to, shape, network_only_options()).problem;
  }
  if (problem.empty() && from.is_partial()) {
    problem = check_relayout(from, to, shape, hosts_of(2)).problem;
  }
  if (!problem.empty()) return problem;
  const StatusOr<RelayoutPlan> there = plan_relayout(from, to, shape, DType::kFloat64);
  const StatusOr<RelayoutPlan> back = plan_relayout(to, from, shape, DType::kFloat64);
  if (!there.ok()) return there.status().ToString();
  if (!back.ok()) return back.status().ToString();
  const int64_t mark = high_water_bytes(*there);
  if (mark != there->peak_bytes()) {
    return absl::StrCat("a device holds ", mark, " bytes at most, not as the plan says:\n",
                        there->explain());
  }
  return check_return_trip(*there, *back);
}

}  // namespace tessera::testing
