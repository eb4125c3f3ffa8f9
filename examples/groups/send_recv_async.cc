// SPDX-License-Identifier: Apache-2.0
//
// Non-blocking send and receive: the calls return a Work at once. The memory belongs to the
// operation until the Work is done. torch: isend, irecv.
//
//   bazel run //examples/groups:send_recv_async
//
// Output, in any order of the lines:
//   client 0 has 10 from client 1
//   client 1 has 0 from client 0
#include <cstdio>

#include "absl/time/time.h"
#include "tessera/tessera.h"

using namespace tessera;

Status run(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(Group group, client.group({0, 1}));
  const int peer = 1 - group.position();
  TESSERA_ASSIGN_OR_RETURN(DeviceSpan<float> mine, client.allocate<float>(0, 1));
  TESSERA_ASSIGN_OR_RETURN(DeviceSpan<float> theirs, client.allocate<float>(0, 1));
  mine[0] = 10.0f * static_cast<float>(group.position());

  // Both members send first. Neither waits, so the order is free of deadlock.
  Work sent = group.send(mine, peer);
  Work received = group.recv(theirs, peer);
  // Other work goes here; `mine` may be read, `theirs` may not be touched.
  TESSERA_RETURN_IF_ERROR(received.wait(absl::Seconds(30)));
  TESSERA_RETURN_IF_ERROR(sent.wait(absl::Seconds(30)));
  std::printf("client %d has %g from client %d\n", client.client_id(), theirs[0], peer);
  return absl::OkStatus();
}

int main() {
  const Status status = spawn(2, run);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
