// SPDX-License-Identifier: Apache-2.0
//
// A barrier before exit: if a client exits early, its shards are lost, and other clients may still
// be reading them. A barrier on the mesh returns when all earlier work of every client is complete.
//
//   bazel build //job:tessera_run //examples:05_barrier_before_exit
//   bazel-bin/job/tessera_run --clients 4 bazel-bin/examples/05_barrier_before_exit
#include <cstdint>
#include <cstdio>

#include "absl/time/time.h"
#include "tessera/tessera.h"

namespace {

using namespace tessera;

Status barrier_before_exit() {
  // 1. Four clients, one mesh.
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect());
  const int64_t num_devices = static_cast<int64_t>(client.devices().size());
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, create_mesh(client, {{"batch", num_devices}}));

  // 2. A small tensor, whole on every device, is relaid to one row block per device.
  TESSERA_ASSIGN_OR_RETURN(Layout replicated, Layout::replicated(mesh, 2));
  TESSERA_ASSIGN_OR_RETURN(Layout batch_sharded, Layout::batch_sharded(mesh, "batch", 2));
  const DTensor x = relayout(iota<float>({8, 2}, replicated), batch_sharded);

  // 3. The call above only enqueued work. The barrier waits for it, on all clients.
  TESSERA_RETURN_IF_ERROR(mesh.barrier("before_exit", absl::Seconds(30)));

  // 4. The value is complete: reading it does not wait.
  TESSERA_ASSIGN_OR_RETURN(ShardView<float> shard, x.shard<float>(0));
  std::printf("client %d holds %s of %s, from %g to %g\n", client.client_id(),
              shard.box.to_string().c_str(), batch_sharded.to_string().c_str(), shard.data.front(),
              shard.data.back());

  // 5. shutdown() leaves the job in order. Without it the other clients would see a lost client.
  return client.shutdown();
}

}  // namespace

int main() {
  const Status status = barrier_before_exit();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
