// SPDX-License-Identifier: Apache-2.0
//
// Part 6 of the guide: checkpoints and files of tensors.
//
//   bazel run //examples/guide:6_saving
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "tessera/tessera.h"

namespace {

using namespace tessera;

Status part(const std::string& folder) {
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect({.num_local_devices = 4}));
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"batch", 2}, {"model", 2}}));

  // 1. A checkpoint is a folder with named tensors, and texts in its metadata.
  const auto layout = [&](const char* text) { return Layout::parse(mesh, text); };
  const DTensor w = iota<float>({4, 6}, layout("[-, model]"));
  const DTensor b = ones<float>({6}, layout("[model]"));
  const std::string path = folder + "/checkpoint";
  TESSERA_RETURN_IF_ERROR(
      checkpoint::save(client, path, {{"w", w}, {"b", b}}, {.metadata = {{"epoch", "3"}}}));

  // 2. Its names, shapes and texts can be read without a job and without reading values.
  TESSERA_ASSIGN_OR_RETURN(checkpoint::Info info, checkpoint::read_info(path));
  for (const auto& tensor : info.tensors) std::cout << tensor.name << " " << tensor.layout << "\n";
  std::cout << "epoch " << info.metadata["epoch"] << "\n";

  // 3. It is read under any layouts, on any mesh, by any number of clients.
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<DTensor> restored,
      checkpoint::restore(client, path, {{"w", layout("[batch, model]")}, {"b", layout("[-]")}}));
  TESSERA_ASSIGN_OR_RETURN(const ShardView<float> block, restored[0].shard<float>(3));
  std::cout << "device 3 has " << block.box.to_string() << ", from " << block.data.front() << " to "
            << block.data.back() << "\n";

  // 4. Files of other tools: safetensors for several tensors, .npy for one.
  TESSERA_RETURN_IF_ERROR(
      write_safetensors(client, folder + "/model.safetensors", {{"w", w}, {"b", b}}));
  TESSERA_RETURN_IF_ERROR(write_npy(client, folder + "/w.npy", w));
  TESSERA_ASSIGN_OR_RETURN(const DTensor columns,
                           read_npy(client, folder + "/w.npy", layout("[-, (batch,model)]")));
  TESSERA_ASSIGN_OR_RETURN(const ShardView<float> column, columns.shard<float>(0));
  std::cout << "device 0 has " << column.box.to_string() << "\n";
  return client.shutdown();
}

}  // namespace

int main() {
  const char* const given = std::getenv("TEST_TMPDIR");
  const std::string folder =
      (given != nullptr ? std::filesystem::path(given) : std::filesystem::temp_directory_path()) /
      ("tessera_guide_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const Status status = part(folder);
  std::filesystem::remove_all(folder);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
