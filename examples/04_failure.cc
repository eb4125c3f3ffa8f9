// SPDX-License-Identifier: Apache-2.0
//
// Failure: the other clients' error when one client does not arrive. Client 2 has a bug: it omits
// the barrier and calls shutdown at once.
//
//   bazel build //job:tessera_run //examples:04_failure
//   bazel-bin/job/tessera_run --clients 4 bazel-bin/examples/04_failure
#include <cstdint>
#include <cstdio>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tessera/tessera.h"

namespace {

using namespace tessera;

constexpr int kForgetful = 2;
constexpr absl::Duration kDeadline = absl::Seconds(2);

// Whether the error is as this program promises: in time, and naming client 2.
bool is_as_expected(const Status& status, absl::Duration waited) {
  const bool names_culprit = absl::StrContains(status.message(), "missing client 2");
  return absl::IsDeadlineExceeded(status) && names_culprit && waited < kDeadline + absl::Seconds(2);
}

Status failure() {
  // 1. Each client connects and makes the mesh as in the other examples.
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect());
  if (client.num_clients() <= kForgetful) {
    return absl::InvalidArgumentError("client 2 is the one that fails: start 3 clients or more");
  }
  const int64_t num_devices = static_cast<int64_t>(client.devices().size());
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, create_mesh(client, {{"batch", num_devices}}));

  if (client.client_id() == kForgetful) {
    // 2. The bug. shutdown() waits until the other clients call it too, so this process lives and
    //    its heartbeats continue: it is not lost, only in another call.
    std::printf("client 2 forgets the barrier\n");
    return client.shutdown();
  }

  // 3. The others wait until the deadline. Then all of them get the same error, which names the
  //    missing client and the call that it is in.
  const absl::Time start = absl::Now();
  const Status status = mesh.barrier("end_of_epoch", kDeadline);
  const absl::Duration waited = absl::Now() - start;
  std::printf("after %.1f s: %s\n", absl::ToDoubleSeconds(waited), status.ToString().c_str());
  if (!is_as_expected(status, waited)) {
    return absl::InternalError("expected DEADLINE_EXCEEDED, in time, naming client 2");
  }

  // 4. An error is a value: nothing aborts and nothing hangs. A program could continue here with a
  //    mesh without that client; this program leaves in order.
  TESSERA_RETURN_IF_ERROR(client.shutdown());
  std::printf("left in order\n");
  return absl::OkStatus();
}

}  // namespace

int main() {
  const Status status = failure();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
