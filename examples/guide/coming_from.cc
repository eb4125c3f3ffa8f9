// SPDX-License-Identifier: Apache-2.0
//
// The programs of docs/coming_from.md: what programs of JAX, PyTorch, TF DTensor and MPI do, here.
//
//   bazel run //examples/guide:coming_from
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "tessera/tessera.h"

namespace {

using namespace tessera;

Status shard(const Client& client) {
  // 1. JAX: a sharded matrix, and its picture.
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, create_mesh(client, {{"x", 4}, {"y", 2}}));
  const DTensor a = ones<float>({8, 8}, Layout::parse(mesh, "[x, y]"));
  TESSERA_ASSIGN_OR_RETURN(std::string picture, visualize(a.layout(), a.shape()));
  std::cout << picture;

  // 2. JAX: a product, and another sharding of the result.
  const DTensor b = ones<float>({8, 8}, Layout::parse(mesh, "[y, -]"));
  const DTensor c = ops::matmul(a, b, "[x, -]");
  const DTensor d = relayout(c, "[-, x]");
  std::cout << c.layout() << ", " << d.layout() << "\n";

  // 3. JAX: a function of shards, and the sum of its results.
  const DTensor terms = local_map("[] sum{x,y}", {}, DType::kFloat32, {a}, [](LocalContext& local) {
    float sum = 0;
    for (const float value : local.input<float>(0).data) sum += value;
    local.output<float>().data[0] = sum;
  });
  TESSERA_ASSIGN_OR_RETURN(const float sum, terms.item<float>());
  std::cout << "the sum is " << sum << "\n";
  return absl::OkStatus();
}

Status train(const Client& client) {
  // 4. PyTorch: the weights of two layers, split by columns and by rows.
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, create_mesh(client, {{"data", 2}, {"model", 4}}));
  const random::Key key = random::Key::from_seed(0);
  nn::Parameters weights;
  weights.add("up",
              random::normal<float>(key.fold_in(0), {16, 64}, Layout::parse(mesh, "[-, model]")));
  weights.add("down",
              random::normal<float>(key.fold_in(1), {64, 16}, Layout::parse(mesh, "[model, -]")));

  // 5. PyTorch: a step. The product of the rows is partial, and the optimizer reduces gradients.
  AdamW optimizer{.learning_rate = 1e-3};
  const DTensor x = ones<float>({32, 16}, Layout::parse(mesh, "[data, -]"));
  Tape tape;
  const std::vector<DTensor> w = weights.watch(tape);
  const DTensor y = ops::matmul(ops::relu(ops::matmul(x, w[0])), w[1]);
  const DTensor loss = ops::mean(ops::square(y));
  TESSERA_RETURN_IF_ERROR(optimizer.apply(weights.variables(), tape.gradient(loss, w)));
  std::cout << y.layout() << "\n";
  return absl::OkStatus();
}

Status pack(const Client& client) {
  // 6. TF DTensor: a mesh, a layout, and tensors from the parts of this client.
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, create_mesh(client, {{"batch", 8}}));
  TESSERA_ASSIGN_OR_RETURN(Layout rows, Layout::batch_sharded(mesh, "batch", 2));
  std::vector<HostTensor<float>> parts(8, HostTensor<float>{{1, 2}, {1, 2}});
  const DTensor packed = from_shards<float>({8, 2}, rows, parts);
  TESSERA_ASSIGN_OR_RETURN(ShardView<float> unpacked, packed.shard<float>(3));
  std::cout << packed.layout() << ", " << unpacked.box.to_string() << "\n";
  return absl::OkStatus();
}

// 7. MPI: the sum over all ranks of vectors of the program.
Status add(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(const Group group, client.group());
  std::vector<double> local = {1, 2, 3}, global(3);
  TESSERA_RETURN_IF_ERROR(group.all_reduce(local, global, ReduceOp::kSum).await());
  return absl::OkStatus();
}

Status transpose(const Client& client) {
  // 8. MPI: the transposition of a matrix whose rows are spread over ranks.
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, create_mesh(client, {{"rank", 8}}));
  const DTensor rows = from_function<double>(
      {16, 24}, Layout::parse(mesh, "[rank, -]"), [](const Box& box, absl::Span<double> out) {
        for (size_t i = 0; i < out.size(); ++i) {
          const auto k = static_cast<int64_t>(i);
          out[i] = static_cast<double>((box.offsets[0] + k / box.sizes[1]) * 24 + k % box.sizes[1]);
        }
      });
  const DTensor transposed = ops::transpose(rows, {1, 0}, "[rank, -]");
  TESSERA_ASSIGN_OR_RETURN(ShardView<double> mine, transposed.shard<double>(0));
  std::cout << mine.box.to_string() << " begins with " << mine.data[0] << ", " << mine.data[1]
            << "\n";
  return absl::OkStatus();
}

Status run() {
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect({.num_local_devices = 8}));
  TESSERA_RETURN_IF_ERROR(shard(client));
  TESSERA_RETURN_IF_ERROR(train(client));
  TESSERA_RETURN_IF_ERROR(pack(client));
  TESSERA_RETURN_IF_ERROR(transpose(client));
  return client.shutdown();
}

}  // namespace

int main() {
  Status status = spawn(2, add);
  if (status.ok()) status = run();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
