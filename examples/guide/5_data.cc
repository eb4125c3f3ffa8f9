// SPDX-License-Identifier: Apache-2.0
//
// Part 5 of the guide: data sets.
//
//   bazel run //examples/guide:5_data
#include <cstdint>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "tessera/tessera.h"

namespace {

using namespace tessera;

// 1. A function of one element: a number becomes a point and its square.
StatusOr<input::Element> point(input::Element element) {
  const auto number = static_cast<float>(element[0].view<int64_t>()[0]);
  return input::Element{HostArray::of<float>(std::vector<float>{number, -number}, {2}),
                        HostArray::scalar(number * number)};
}

// The squares of a batch. Every client calls it, because to_string() gathers.
Status print(const input::Batch& batch) {
  TESSERA_ASSIGN_OR_RETURN(const std::string squares, to_string(batch.tensors[1]));
  std::cout << "step " << batch.step << ", " << batch.size << " elements: " << squares << "\n";
  return absl::OkStatus();
}

Status part() {
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect({.num_local_devices = 2}));
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"batch", 2}}));

  // 2. A data set is a description: ten elements, another order in each of two epochs, batches of
  //    four.
  const input::Dataset batches =
      input::Dataset::range(10).map(point).shuffle(/*seed=*/1).repeat(2).batch(4);
  std::cout << *batches.cardinality() << " batches\n";

  // 3. As tensors: a layout for each array of an element.
  TESSERA_ASSIGN_OR_RETURN(const Layout points, Layout::parse(mesh, "[batch, -]"));
  TESSERA_ASSIGN_OR_RETURN(const Layout squares, Layout::parse(mesh, "[batch]"));
  TESSERA_ASSIGN_OR_RETURN(const input::Loader loader,
                           input::distribute(client, batches, {points, squares}));
  TESSERA_ASSIGN_OR_RETURN(input::Iterator iterator, loader.iterate());
  for (int step = 0; step < 3; ++step) {
    TESSERA_ASSIGN_OR_RETURN(const std::optional<input::Batch> batch, iterator.next());
    TESSERA_RETURN_IF_ERROR(print(*batch));
  }

  // 4. The position in the data is a few numbers, and has a text.
  const std::string saved = iterator.state().to_string();
  std::cout << saved << "\n";

  // 5. Another run continues from the text, also on another number of clients and devices.
  TESSERA_ASSIGN_OR_RETURN(const input::IteratorState state, input::IteratorState::parse(saved));
  TESSERA_ASSIGN_OR_RETURN(input::Iterator resumed, loader.iterate(state));
  for (;;) {
    TESSERA_ASSIGN_OR_RETURN(const std::optional<input::Batch> batch, resumed.next());
    if (!batch.has_value()) break;  // the end, on all clients at the same step
    TESSERA_RETURN_IF_ERROR(print(*batch));
  }

  // 6. Without a mesh: arrays in memory of the host.
  TESSERA_ASSIGN_OR_RETURN(input::HostIterator on_host, batches.iterate());
  TESSERA_ASSIGN_OR_RETURN(const std::optional<input::Element> first, on_host.next());
  std::cout << first->size() << " arrays, the first is of " << (*first)[0].shape[0] << " x "
            << (*first)[0].shape[1] << " numbers\n";
  return client.shutdown();
}

}  // namespace

int main() {
  const Status status = part();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
