// SPDX-License-Identifier: Apache-2.0
//
// The programs of docs/recipes.md, one function for each recipe.
//
//   bazel run //examples/guide:recipes
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tessera/tessera.h"

namespace {

using namespace tessera;

Status save_and_load(const Client& client, const Mesh& mesh, const std::string& folder) {
  // 1. One tensor in a .npy file, which NumPy reads. Each client writes its own part.
  const DTensor x = iota<float>({6, 4}, Layout::parse(mesh, "[x, -]"));
  TESSERA_RETURN_IF_ERROR(write_npy(client, folder + "/x.npy", x));
  TESSERA_ASSIGN_OR_RETURN(const DTensor columns,
                           read_npy(client, folder + "/x.npy", Layout::parse(mesh, "[-, x]")));
  std::cout << "read as " << columns.layout() << "\n";

  // 2. Several tensors with names, in the format of Hugging Face.
  TESSERA_RETURN_IF_ERROR(write_safetensors(client, folder + "/x.safetensors", {{"x", x}}));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<DTensor> values,
                           checkpoint::restore(client, folder + "/x.safetensors",
                                               {{"x", Layout::parse(mesh, "[-, -]")}}));
  std::cout << "read as " << values[0].layout() << "\n";
  return absl::OkStatus();
}

Status print(const Client& client, const Mesh& mesh) {
  // 3. The shards of this client. A stream never waits, so the program waits before.
  const DTensor x = iota<float>({3, 4}, Layout::parse(mesh, "[x, -]"));
  TESSERA_RETURN_IF_ERROR(x.await());
  std::cout << x << "\n";

  // The whole value. Every client calls it, because it gathers; one of them prints.
  TESSERA_ASSIGN_OR_RETURN(const std::string text, to_string(x));
  if (client.client_id() == 0) std::cout << text << "\n";

  // The elements, on one client. The others get no elements, and do not wait.
  TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> host, x.gather_to<float>(/*client=*/0));
  std::cout << host.data.size() << " elements:";
  for (const float value : host.data) std::cout << " " << value;
  std::cout << "\n";

  // One element, on every client.
  const DTensor corner = x[{-1, -1}];
  TESSERA_ASSIGN_OR_RETURN(const float last, corner.item<float>());
  std::cout << "the last is " << last << "\n";
  return absl::OkStatus();
}

Status train(const Mesh& mesh) {
  // 4. Mixed precision: the variable and its state are f32, the products are bf16.
  const random::Key key = random::Key::from_seed(1);
  const DTensor x = random::normal<float>(key.fold_in(0), {64, 8}, Layout::parse(mesh, "[x, -]"));
  const DTensor y = ops::sum(x, 1, ops::KeepDims::kYes);
  nn::Parameters weights;
  weights.add("w", zeros<float>({8, 1}, Layout::parse(mesh, "[-, -]")));
  AdamW optimizer{.learning_rate = 0.1, .weight_decay = 0};
  const auto loss_of = [](const DTensor& inputs, const DTensor& targets, const DTensor& w) {
    const DTensor product =
        ops::matmul(ops::cast(inputs, DType::kBFloat16), ops::cast(w, DType::kBFloat16));
    return ops::mean(ops::square(ops::cast<float>(product) - targets));
  };
  {
    Tape tape;
    const std::vector<DTensor> w = weights.watch(tape);
    const DTensor loss = loss_of(x, y, w[0]);
    const std::vector<DTensor> gradients = tape.gradient(loss, w);
    std::cout << "gradients are " << dtype_name(gradients[0].dtype()) << "\n";
    TESSERA_RETURN_IF_ERROR(optimizer.apply(weights.variables(), gradients));
  }

  // 5. Accumulated gradients: four parts of a batch, one step of the optimizer. The sums stay
  //    partial, and are reduced once.
  for (int step = 0; step < 50; ++step) {
    std::vector<DTensor> sums;
    for (int64_t part = 0; part < 4; ++part) {
      Tape tape;
      const std::vector<DTensor> w = weights.watch(tape);
      const Range rows = {16 * part, 16 * part + 16};
      const DTensor loss = loss_of(x[{rows}], y[{rows}], w[0]) / 4;
      const std::vector<DTensor> gradients = tape.gradient(loss, w, {.reduce = Reduce::kLater});
      if (sums.empty()) {
        sums = gradients;
      } else {
        for (size_t i = 0; i < sums.size(); ++i) sums[i] += gradients[i];
      }
    }
    TESSERA_RETURN_IF_ERROR(optimizer.apply(weights.variables(), sums));
  }
  const DTensor w = weights.variables()[0].value()[{0, 0}];
  TESSERA_ASSIGN_OR_RETURN(const float first, w.item<float>());
  std::printf("the first weight is %.0f\n", first);
  std::fflush(stdout);
  return absl::OkStatus();
}

Status look(Client& client, const Mesh& mesh) {
  // 6. What a call sends: an operation explains itself, and a plan has bytes and predicted times.
  const DTensor a = ones<float>({256, 256}, Layout::parse(mesh, "[-, x]"));
  const DTensor b = ones<float>({256, 256}, Layout::parse(mesh, "[-, x]"));
  std::cout << ops::matmul(a, b).explain();

  // 7. How long a call takes: the devices are idle before the clock starts and before it stops.
  TESSERA_RETURN_IF_ERROR(client.sync_devices());
  const absl::Time start = absl::Now();
  const DTensor product = ops::matmul(a, b);
  TESSERA_RETURN_IF_ERROR(client.sync_devices());
  std::printf("a product takes %.3f ms\n", absl::ToDoubleMilliseconds(absl::Now() - start));
  std::fflush(stdout);
  return absl::OkStatus();
}

// 8. Several threads of one client. Each gets its own values; tasks of one job of several clients
//    need one order on all clients, so one thread would make these calls there.
Status serve(const Mesh& mesh) {
  std::vector<Status> results(4);
  std::vector<std::thread> threads;
  for (int request = 0; request < 4; ++request) {
    threads.emplace_back([&, request] {
      const DTensor x =
          full<float>({8, 8}, static_cast<float>(request), Layout::parse(mesh, "[x, -]"));
      results[request] = relayout(x, "[-, -]").await();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& result : results) TESSERA_RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

Status run(const std::string& folder) {
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect({.num_local_devices = 2}));
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
  TESSERA_RETURN_IF_ERROR(save_and_load(client, mesh, folder));
  TESSERA_RETURN_IF_ERROR(print(client, mesh));
  TESSERA_RETURN_IF_ERROR(train(mesh));
  TESSERA_RETURN_IF_ERROR(look(client, mesh));
  TESSERA_RETURN_IF_ERROR(serve(mesh));
  std::cout << "four requests were served\n";
  return client.shutdown();
}

}  // namespace

int main() {
  const char* const given = std::getenv("TEST_TMPDIR");
  const std::string folder =
      (given != nullptr ? std::filesystem::path(given) : std::filesystem::temp_directory_path()) /
      ("tessera_recipes_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const Status status = run(folder);
  std::filesystem::remove_all(folder);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
