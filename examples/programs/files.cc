// SPDX-License-Identifier: Apache-2.0
//
// Files of other tools: a .npy file is read by columns, written as safetensors, and read again by
// rows. Each client reads the bytes of its own shards, and writes them.
//
//   bazel run //examples/programs:files
//
// Output:
//   f32 [4, 6] under [-, x] on {x=2}, ready
//   device 0 [0:4, 0:3]
//   [[ 0.  1.  2.]
//    [ 6.  7.  8.]
//    [12. 13. 14.]
//    [18. 19. 20.]]
//   f32 [4, 6] under [x, -] on {x=2}, ready
//   device 0 [0:2, 0:6]
//   [[ 0.  1.  2.  3.  4.  5.]
//    [ 6.  7.  8.  9. 10. 11.]]
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "tessera/tessera.h"

using namespace tessera;

Status convert(const Client& client, const std::string& folder) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
  const auto layout = [&](const char* text) { return Layout::parse(mesh, text); };
  const std::string npy = folder + "/w.npy", safetensors = folder + "/w.safetensors";
  TESSERA_RETURN_IF_ERROR(write_npy(client, npy, iota<float>({4, 6}, layout("[x, -]"))));

  // The core.
  TESSERA_ASSIGN_OR_RETURN(const DTensor w, read_npy(client, npy, layout("[-, x]")));
  TESSERA_RETURN_IF_ERROR(write_safetensors(client, safetensors, {{"w", w}}));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<DTensor> read,
                           checkpoint::restore(client, safetensors, {{"w", layout("[x, -]")}}));
  // The end of the core.

  TESSERA_RETURN_IF_ERROR(read[0].await());
  if (client.client_id() == 0) std::cout << w << "\n" << read[0] << "\n";
  return absl::OkStatus();
}

int main() {
  const char* const given = std::getenv("TEST_TMPDIR");
  const std::string folder =
      (given != nullptr ? std::filesystem::path(given) : std::filesystem::temp_directory_path()) /
      ("tessera_files_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const Status status = spawn(2, [&](const Client& client) { return convert(client, folder); });
  std::filesystem::remove_all(folder);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
