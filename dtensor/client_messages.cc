// SPDX-License-Identifier: Apache-2.0
#include "dtensor/client_messages.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "dtensor/runtime.h"
#include "mesh/mesh_runtime.h"

namespace tessera::internal {

Status empty_client_error(absl::string_view call) {
  return absl::FailedPreconditionError(absl::StrCat(
      call, "() of an empty Client; assign a client of Client::connect() to it first"));
}

Status check_open(const Client& client, absl::string_view call) {
  const std::shared_ptr<Runtime>& runtime = runtime_of(client);
  if (runtime == nullptr) return empty_client_error(call);
  TESSERA_RETURN_IF_ERROR(runtime->turns().check_open());
  return check_may_wait(client, call);
}

Status check_process(const Client& client) { return runtime_of(client)->devices().check_process(); }

Status check_may_wait(const Client& client, absl::string_view call) {
  return runtime_of(client)->devices().check_may_wait(call);
}

Status check_mesh_of(const Client& client, const Mesh& mesh, absl::string_view subject) {
  if (runtime_of(mesh) == runtime_of(client)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(subject, " is on ", mesh.to_string(),
                   runtime_of(mesh) == nullptr
                       ? ", an abstract mesh; make a live one with create_mesh"
                       : ", a mesh of another client; use a mesh of the client that is passed"));
}

Status post(const Client& client, absl::string_view series, uint32_t number,
            absl::string_view value) {
  const std::shared_ptr<Runtime>& runtime = runtime_of(client);
  if (runtime == nullptr) return check_open(client, "post");
  TESSERA_RETURN_IF_ERROR(runtime->devices().check_process());
  return runtime->job().propose(series, number, value).status();
}

StatusOr<std::string> await_post(const Client& client, absl::string_view series, uint32_t number,
                                 int sender, absl::Duration timeout) {
  const std::shared_ptr<Runtime>& runtime = runtime_of(client);
  if (runtime == nullptr) return check_open(client, "await_post");
  TESSERA_RETURN_IF_ERROR(runtime->devices().check_process());
  return runtime->job().get_proposal(series, number, sender, steady_now() + timeout);
}

Status first_loss(const Client& client) { return runtime_of(client)->job().first_loss(); }

std::string describe_client(const Client& client, int client_id) {
  return runtime_of(client)->job().describe_client(client_id);
}

WaitReports::Missing missing_client(const Client& client, int client_id) {
  WaitReports::Missing missing = runtime_of(client)->devices().describe_clients({client_id}, {});
  missing.text = absl::StrCat("missing ", missing.text);
  return missing;
}

}  // namespace tessera::internal
