// SPDX-License-Identifier: Apache-2.0
#include "tests/support/tensors.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace tessera::testing {

StatusOr<Mesh> live_mesh(const Client& client, absl::string_view text) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::parse(text));
  return create_mesh(client, {mesh.axes().begin(), mesh.axes().end()},
                     std::vector<int>(mesh.device_ids().begin(), mesh.device_ids().end()));
}

void for_each_element(const Box& box,
                      const std::function<void(const std::vector<int64_t>&, int64_t)>& fn) {
  std::vector<int64_t> index = box.offsets;
  for (int64_t place = 0; place < box.num_elements(); ++place) {
    fn(index, place);
    for (int dim = static_cast<int>(index.size()) - 1; dim >= 0; --dim) {
      if (++index[dim] < box.offsets[dim] + box.sizes[dim]) break;
      index[dim] = box.offsets[dim];
    }
  }
}

int64_t flat_index(const Shape& shape, const std::vector<int64_t>& index) {
  int64_t flat = 0;
  for (size_t dim = 0; dim < shape.size(); ++dim) flat = flat * shape[dim] + index[dim];
  return flat;
}

std::vector<Layout> all_layouts(const Mesh& mesh, int rank, bool partial) {
  std::vector<Layout> result;
  std::set<std::string> seen;
  std::vector<int> order(mesh.rank());
  for (int i = 0; i < mesh.rank(); ++i) order[i] = i;
  // Place `rank` is "none", place rank + 1 is "partial".
  const int num_places = rank + (partial ? 2 : 1);
  int num_choices = 1;
  for (int i = 0; i < mesh.rank(); ++i) num_choices *= num_places;
  do {
    for (int choice = 0; choice < num_choices; ++choice) {
      std::vector<DimSharding> dims(rank);
      std::vector<std::string> partial_axes;
      for (int i = 0, rest = choice; i < mesh.rank(); ++i, rest /= num_places) {
        const std::string& name = mesh.axes()[order[i]].name;
        const int place = rest % num_places;
        if (place < rank) dims[place].push_back(name);
        if (place == rank + 1) partial_axes.push_back(name);
      }
      StatusOr<Layout> layout = Layout::create(mesh, dims);
      if (layout.ok() && !partial_axes.empty()) layout = layout->with_partial(partial_axes);
      if (layout.ok() && seen.insert(layout->to_string()).second) result.push_back(*layout);
    }
  } while (std::next_permutation(order.begin(), order.end()));
  return result;
}

}  // namespace tessera::testing
