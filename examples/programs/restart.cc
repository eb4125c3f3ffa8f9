// SPDX-License-Identifier: Apache-2.0
//
// A client is killed. The survivors cannot go on without its shards: the run ends, and another run,
// of fewer clients, continues from the last checkpoint.
//
//   bazel run //examples/programs:restart
//
// Output:
//   3 clients: UNAVAILABLE
//   2 clients, after step 4: [10. 10. 10. 10. 10. 10.]
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <utility>

#include "tessera/tessera.h"

using namespace tessera;

// Ten steps that add 1 to each element, and are saved. Client 2 is killed after step 4.
Status count(const Client& client, const std::string& folder) {
  const auto num_devices = static_cast<int64_t>(client.devices().size());
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", num_devices}}));

  // The core.
  nn::Parameters weights;
  Variable& w = weights.add("w", zeros<float>({6}, Layout::parse(mesh, "[x]")));
  TESSERA_ASSIGN_OR_RETURN(auto run, checkpoint::Checkpointer::open(client, folder));
  TESSERA_ASSIGN_OR_RETURN(const std::optional<checkpoint::Info> last, run.latest());
  if (last.has_value()) {
    TESSERA_RETURN_IF_ERROR(checkpoint::restore_into(client, last->path, weights.variables()));
  }
  for (int64_t step = last.has_value() ? last->step + 1 : 1; step <= 10; ++step) {
    TESSERA_RETURN_IF_ERROR(w.assign_add(ops::ones_like(w.value())));
    TESSERA_ASSIGN_OR_RETURN(const auto saved, run.save(step, {{"w", w.value()}}));
    TESSERA_RETURN_IF_ERROR(saved.await());
    if (client.client_id() == 2 && step == 4) std::raise(SIGKILL);
  }
  // The end of the core.

  TESSERA_ASSIGN_OR_RETURN(const std::string text, to_string(w.value()));
  if (client.client_id() != 0) return absl::OkStatus();
  std::cout << client.num_clients() << " clients, after step " << (last ? last->step : 0) << ": "
            << text << std::endl;
  return absl::OkStatus();
}

int main() {
  const char* const given = std::getenv("TEST_TMPDIR");
  const std::string folder =
      (given != nullptr ? std::filesystem::path(given) : std::filesystem::temp_directory_path()) /
      ("tessera_restart_" + std::to_string(getpid()));
  const auto run = [&](const Client& client) { return count(client, folder); };
  Status status;
  for (int num_clients = 3; num_clients > 1; --num_clients) {
    status = spawn(num_clients, run);
    if (status.ok()) break;
    std::cout << num_clients << " clients: " << absl::StatusCodeToString(status.code())
              << std::endl;
  }
  std::filesystem::remove_all(folder);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
