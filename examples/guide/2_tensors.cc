// SPDX-License-Identifier: Apache-2.0
//
// Part 2 of the guide: tensors and relayouts.
//
//   bazel run //examples/guide:2_tensors
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "tessera/tessera.h"

namespace {

using namespace tessera;

Status make(const Mesh& mesh) {
  // 1. Every client gives the whole value, and each device keeps its own part.
  std::vector<float> values(6 * 4);
  std::iota(values.begin(), values.end(), 0.0f);
  const DTensor x = from_host<float>(values, {6, 4}, Layout::parse(mesh, "[x, -]"));
  std::cout << x.shape().size() << " dims, " << x.layout() << "\n";

  // 2. A function makes one shard after another from global indices. No client holds the tensor.
  const DTensor table = from_function<float>(
      {6, 4}, Layout::parse(mesh, "[x, -]"), [](const Box& box, absl::Span<float> out) {
        for (size_t i = 0; i < out.size(); ++i) {
          const int64_t row = box.offsets[0] + static_cast<int64_t>(i) / box.sizes[1];
          const int64_t column = box.offsets[1] + static_cast<int64_t>(i) % box.sizes[1];
          out[i] = static_cast<float>(10 * row + column);
        }
      });

  // 3. A stream gets the shards of this client. It never waits, so the program waits before.
  TESSERA_RETURN_IF_ERROR(table.await());
  std::cout << table << "\n";

  // 4. shard() waits for the value, and views the memory of one device.
  TESSERA_ASSIGN_OR_RETURN(const ShardView<float> shard, table.shard<float>(1));
  std::cout << shard.box.to_string() << " begins with " << shard.data[0] << "\n";

  // 5. to_host() gathers the whole value on every client, and to_string() prints it. All clients
  //    must make these calls.
  TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> all, table.to_host<float>());
  TESSERA_ASSIGN_OR_RETURN(const std::string text, to_string(table));
  std::cout << all.data.size() << " numbers:\n" << text << "\n";

  // 6. x[{...}] is a part of a tensor, also a tensor, and item() the value of one element.
  const DTensor corner = table[{-1, -1}], two_rows = table[{Range{1, 3}}];
  TESSERA_ASSIGN_OR_RETURN(const float number, corner.item<float>());
  TESSERA_ASSIGN_OR_RETURN(const std::string part, to_string(two_rows));
  std::cout << "the last is " << number << ", and two rows are\n" << part << "\n";
  return absl::OkStatus();
}

Status move(const Mesh& mesh) {
  // 7. A relayout is a new tensor with the same value under another layout.
  const DTensor rows = iota<float>({6, 4}, Layout::parse(mesh, "[x, -]"));
  const DTensor columns = relayout(rows, "[-, x]");
  TESSERA_RETURN_IF_ERROR(columns.await());
  std::cout << columns << "\n";

  // 8. A plan says how the bytes will move, and moves none.
  TESSERA_ASSIGN_OR_RETURN(const RelayoutPlan plan,
                           plan_relayout(rows.layout(), columns.layout(), {6, 4}, DType::kFloat32));
  std::cout << plan.explain();

  // 9. A partial tensor: each device holds a term, and the value is the sum of the terms.
  const DTensor terms =
      local_map("[-] sum{x}", {4}, DType::kFloat32, {rows}, [](LocalContext& local) {
        const ShardView<float> in = local.input<float>(0);
        absl::Span<float> out = local.output<float>().data;
        for (float& sum : out) sum = 0;
        for (size_t i = 0; i < in.data.size(); ++i) out[i % out.size()] += in.data[i];
      });
  TESSERA_RETURN_IF_ERROR(terms.await());
  std::cout << terms << "\n";

  // 10. A relayout to a layout without the partial axis adds the terms.
  const DTensor sums = relayout(terms, "[-]");
  TESSERA_ASSIGN_OR_RETURN(const std::string values, to_string(sums));
  std::cout << "the sums of the columns: " << values << "\n";

  // 11. A tensor that is given away releases its memory after the first step of the plan.
  DTensor source = ones<float>({6, 4}, Layout::parse(mesh, "[x, -]"));
  const DTensor moved = relayout(std::move(source), "[-, x]");
  std::cout << moved.layout() << "\n";
  return absl::OkStatus();
}

Status part() {
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect({.num_local_devices = 3}));
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 3}}));
  TESSERA_RETURN_IF_ERROR(make(mesh));
  TESSERA_RETURN_IF_ERROR(move(mesh));
  return client.shutdown();
}

}  // namespace

int main() {
  const Status status = part();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
