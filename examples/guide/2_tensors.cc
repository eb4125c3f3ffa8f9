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

void print(absl::Span<const float> values) {
  for (const float value : values) std::cout << " " << value;
  std::cout << "\n";
}

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

  // 3. shard() waits for the value, and views the memory of one device.
  for (int device = 0; device < table.num_local_shards(); ++device) {
    TESSERA_ASSIGN_OR_RETURN(const ShardView<float> shard, table.shard<float>(device));
    std::cout << "device " << device << " has " << shard.box.to_string() << ":";
    print(shard.data);
  }

  // 4. to_host() gathers the whole value on every client. All clients must make this call.
  TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> all, table.to_host<float>());
  std::cout << all.data.size() << " numbers, the last is " << all.data.back() << "\n";
  return absl::OkStatus();
}

Status move(const Mesh& mesh) {
  // 5. A relayout is a new tensor with the same value under another layout.
  const DTensor rows = iota<float>({6, 4}, Layout::parse(mesh, "[x, -]"));
  const DTensor columns = relayout(rows, Layout::parse(mesh, "[-, x]"));
  TESSERA_ASSIGN_OR_RETURN(const ShardView<float> first, columns.shard<float>(0));
  std::cout << "device 0 has " << first.box.to_string() << ":";
  print(first.data);

  // 6. A plan says how the bytes will move, and moves none.
  TESSERA_ASSIGN_OR_RETURN(const RelayoutPlan plan,
                           plan_relayout(rows.layout(), columns.layout(), {6, 4}, DType::kFloat32));
  std::cout << plan.explain();

  // 7. A partial tensor: each device holds a term, and the value is the sum of the terms.
  const DTensor terms = local_map(Layout::parse(mesh, "[-] sum{x}"), {4}, DType::kFloat32, {rows},
                                  [](LocalContext& local) {
                                    const ShardView<float> in = local.input<float>(0);
                                    absl::Span<float> out = local.output<float>().data;
                                    for (float& sum : out) sum = 0;
                                    for (size_t i = 0; i < in.data.size(); ++i)
                                      out[i % out.size()] += in.data[i];
                                  });
  TESSERA_ASSIGN_OR_RETURN(const ShardView<float> term, terms.shard<float>(0));
  std::cout << "the term of device 0:";
  print(term.data);

  // 8. A relayout to a layout without the partial axis adds the terms.
  const DTensor sums = relayout(terms, Layout::replicated(mesh, 1));
  TESSERA_ASSIGN_OR_RETURN(const ShardView<float> sum, sums.shard<float>(0));
  std::cout << "the sums of the columns:";
  print(sum.data);

  // 9. A tensor that is given away releases its memory after the first step of the plan.
  DTensor source = ones<float>({6, 4}, Layout::parse(mesh, "[x, -]"));
  const DTensor moved = relayout(std::move(source), Layout::parse(mesh, "[-, x]"));
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
