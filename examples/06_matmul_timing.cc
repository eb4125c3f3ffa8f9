// SPDX-License-Identifier: Apache-2.0
//
// Timing a product of matrices: operations only enqueue work, so a clock that does not wait for the
// devices measures how long that takes.
//
//   bazel build -c opt //examples:06_matmul_timing
//   bazel-bin/examples/06_matmul_timing --devices 2
#include <cstdint>
#include <cstdio>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tessera/tessera.h"

ABSL_FLAG(int64_t, size, 4096, "rows and columns of the matrices");
ABSL_FLAG(int, devices, 2, "devices of this client");

namespace {

using namespace tessera;

Status time_matmul() {
  ClientOptions options;
  options.num_local_devices = absl::GetFlag(FLAGS_devices);
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect(options));
  const int64_t num_devices = static_cast<int64_t>(client.devices().size());
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, create_mesh(client, {{"x", num_devices}}));
  const int64_t n = absl::GetFlag(FLAGS_size);

  // 1. Random matrices: the same numbers under every layout. One is split by rows, the other whole.
  const random::Key key = random::Key::from_seed(1);
  const DTensor a =
      random::normal<float>(key.fold_in(0), {n, n}, Layout::batch_sharded(mesh, "x", 2));
  const DTensor b = random::normal<float>(key.fold_in(1), {n, n}, Layout::replicated(mesh, 2));

  // 2. The first call also plans. Nothing is sent: each device multiplies its rows.
  DTensor c = ops::matmul(a, b);
  TESSERA_RETURN_IF_ERROR(c.await());
  std::printf("%s times %s is %s\n", a.layout().to_string().c_str(), b.layout().to_string().c_str(),
              c.layout().to_string().c_str());

  // 3. Wrong: the call returns before the devices have begun.
  absl::Time start = absl::Now();
  c = ops::matmul(a, b);
  const double seconds_to_enqueue = absl::ToDoubleSeconds(absl::Now() - start);
  TESSERA_RETURN_IF_ERROR(client.sync_devices());

  // 4. Right: all devices are idle before the clock starts, and again before it stops.
  start = absl::Now();
  c = ops::matmul(a, b);
  TESSERA_RETURN_IF_ERROR(client.sync_devices());
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  const double operations = 2.0 * static_cast<double>(n) * static_cast<double>(n * n);
  std::printf("without sync_devices() %10.6f s\n", seconds_to_enqueue);
  std::printf("with sync_devices()    %10.6f s, %.1f GFLOP/s\n", seconds,
              operations / seconds / 1e9);
  return client.shutdown();
}

}  // namespace

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const Status status = time_matmul();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
