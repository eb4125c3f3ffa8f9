// SPDX-License-Identifier: Apache-2.0
//
// Quickstart: one process, eight CPU devices, one matrix split over them in several ways.
//
//   bazel run //examples:01_quickstart
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tessera/tessera.h"

namespace {

using namespace tessera;

Status quickstart() {
  // 1. A client is one process of a job; here it is the whole job, with eight devices.
  ClientOptions options;
  options.num_local_devices = 8;
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect(options));

  // 2. A mesh names the devices along axes: here 4 groups of 2.
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, create_mesh(client, {{"batch", 4}, {"model", 2}}));

  // 3. A layout says, for each dim of a tensor, which axes split it ("-": none). Along an axis that
  //    no dim names, devices hold copies.
  TESSERA_ASSIGN_OR_RETURN(Layout whole, Layout::replicated(mesh, 2));             // [-, -]
  TESSERA_ASSIGN_OR_RETURN(Layout rows, Layout::batch_sharded(mesh, "batch", 2));  // [batch, -]
  TESSERA_ASSIGN_OR_RETURN(Layout blocks, Layout::parse(mesh, "[batch, model]"));

  // 4. A tensor is one global value under a layout. Each device gets its own part of `values`.
  const Shape shape = {10, 6};
  std::vector<float> values(10 * 6);
  std::iota(values.begin(), values.end(), 0.0f);
  const DTensor x = from_host<float>(values, shape, whole);

  // 5. relayout() moves the same value to another layout. Calls enqueue work and return at once.
  const DTensor x_rows = relayout(x, rows);
  const DTensor x_blocks = relayout(x_rows, blocks);

  // 6. visualize() shows which device holds which part. 10 rows over 4 devices: sizes differ by at
  //    most one, and nothing is padded.
  for (const DTensor& tensor : {x, x_rows, x_blocks}) {
    TESSERA_ASSIGN_OR_RETURN(const std::string picture, visualize(tensor.layout(), shape));
    std::printf("%s\n", picture.c_str());
  }

  // 7. shard() waits for the value, and is a view of the memory of one device.
  TESSERA_ASSIGN_OR_RETURN(ShardView<float> shard, x_rows.shard<float>(2));
  std::printf("device 2 holds %s of %s, and its first element is %g\n",
              shard.box.to_string().c_str(), rows.to_string().c_str(), shard.data[0]);

  // 8. A mistake is an error with a message, never a crash. It travels with the tensor until the
  //    tensor is read.
  const DTensor wrong = relayout(x, "[bach, -]");
  std::printf("a typo: %s\n", std::string(wrong.status().message()).c_str());

  // 9. A barrier: when it returns, all earlier work of every client of the mesh is complete.
  TESSERA_RETURN_IF_ERROR(mesh.barrier("the_end", absl::Seconds(10)));
  std::printf("all devices of %s have reached the barrier\n", mesh.to_string().c_str());
  return client.shutdown();
}

}  // namespace

int main() {
  const Status status = quickstart();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
