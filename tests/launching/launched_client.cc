// SPDX-License-Identifier: Apache-2.0
//
// A client of launchers_test and hosts/launching_test, as a user's program: it knows its job only
// from connect().
//
//   meet       all meet at a barrier; each says "met CLIENT of CLIENTS"
//   survive    client 0 is killed; the others make a mesh of the rest, meet, and say "survived"
//   lose_last  the last client is killed; the others end with the error that they get
//   wait       says "connected", and waits for the end of its standard input
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dtensor/client.h"
#include "mesh/mesh.h"

// c-ares, which gRPC looks names up with, loses a few bytes at its first look-up.
extern "C" const char* __lsan_default_suppressions() { return "leak:libcares\n"; }
extern "C" const char* __lsan_default_options() { return "print_suppressions=0"; }

namespace tessera {
namespace {

StatusOr<Mesh> mesh_of_all(const Client& client) {
  return create_mesh(client, {{"x", static_cast<int64_t>(client.devices().size())}});
}

Status meet(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, mesh_of_all(client));
  TESSERA_RETURN_IF_ERROR(mesh.barrier("met"));
  std::printf("met %d of %d\n", client.client_id(), client.num_clients());
  return absl::OkStatus();
}

Status survive(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, mesh_of_all(client));
  TESSERA_RETURN_IF_ERROR(mesh.barrier("here"));
  if (client.client_id() == 0) kill(getpid(), SIGKILL);
  const Status lost = mesh.barrier("wait");
  if (!absl::IsUnavailable(lost)) {
    return absl::InternalError(absl::StrCat("not told of the loss: ", lost.ToString()));
  }
  std::vector<int> rest;
  for (const Device& device : client.devices()) {
    if (device.client_id != 0) rest.push_back(device.id);
  }
  TESSERA_ASSIGN_OR_RETURN(const Mesh smaller,
                           create_mesh(client, {{"x", static_cast<int64_t>(rest.size())}}, rest));
  TESSERA_RETURN_IF_ERROR(smaller.barrier("after"));
  std::printf("survived %d of %d\n", client.client_id(), client.num_clients());
  return absl::OkStatus();
}

Status lose_last(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, mesh_of_all(client));
  TESSERA_RETURN_IF_ERROR(mesh.barrier("here"));
  if (client.client_id() == client.num_clients() - 1) kill(getpid(), SIGKILL);
  return mesh.barrier("wait");
}

Status run(const std::string& mode) {
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect());
  if (mode == "wait") {
    std::puts("connected");
    std::fflush(stdout);
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0) {
    }
  } else {
    TESSERA_RETURN_IF_ERROR(mode == "meet"        ? meet(client)
                            : mode == "lose_last" ? lose_last(client)
                                                  : survive(client));
  }
  return client.shutdown();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const tessera::Status status = tessera::run(argc > 1 ? argv[1] : "meet");
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
