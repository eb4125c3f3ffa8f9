// SPDX-License-Identifier: Apache-2.0
//
// A kernel of the program's own in local_map: how many Collatz steps the numbers below a million
// take. No operation has a loop whose length depends on the element.
//
//   bazel run //examples:13_custom_kernel        on GPUs; where there are none, on two CPU devices
#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "examples/collatz.h"
#include "tessera/tessera.h"

namespace {

using namespace tessera;

// Runs on each device. On a GPU the views are of its memory: the function gives the device's stream
// the kernel, and returns without waiting.
Status count_steps(LocalContext& local) {
  const auto n = local.input<int64_t>(0).data;
  const auto steps = local.output<int32_t>().data;
#ifdef TESSERA_EXAMPLES_HAVE_CUDA
  if (void* const stream = local.cuda_stream(); stream != nullptr) {
    const int error =
        launch_collatz(n.data(), steps.data(), static_cast<int64_t>(n.size()), stream);
    return error == 0 ? absl::OkStatus() : absl::InternalError(absl::StrCat("CUDA error ", error));
  }
#endif
  for (size_t i = 0; i < n.size(); ++i) steps[i] = collatz_steps(n[i]);
  return absl::OkStatus();
}

Status find_most() {
  StatusOr<Client> client = Client::connect({.device_type = DeviceType::kCuda});
  if (!client.ok()) {
    std::printf("on CPUs, because %s\n", client.status().ToString().c_str());
    client = Client::connect({.num_local_devices = 2});
  }
  TESSERA_RETURN_IF_ERROR(client.status());
  const auto num_devices = static_cast<int64_t>(client->devices().size());
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(*client, {{"x", num_devices}}));
  const auto split = Layout::parse(mesh, "[x]");
  const DTensor n = iota<int64_t>({999'999}, split) + 1;
  const DTensor steps = local_map(split, n.shape(), DType::kInt32, {n}, count_steps);
  TESSERA_ASSIGN_OR_RETURN(const int32_t most, ops::max(steps).item<int32_t>());
  std::printf("%s: at most %d steps\n", mesh.to_string().c_str(), most);
  return client->shutdown();
}

}  // namespace

int main() {
  const Status status = find_most();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
