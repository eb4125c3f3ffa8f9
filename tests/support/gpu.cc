// SPDX-License-Identifier: Apache-2.0
#include "tests/support/gpu.h"

#include <cstdlib>

#include "absl/time/time.h"
#include "collectives/nccl/open_api.h"
#include "device/cuda/open_api.h"
#include "tests/support/forked.h"

namespace tessera::testing {
namespace {

Status find_gpu() {
  if (!is_test_gpu_asked_for()) return absl::UnavailableError("$TESSERA_TEST_GPU is not set");
  return run_isolated(absl::Seconds(60), [] { return cuda::open_api().status(); });
}

Status find_nccl() {
  TESSERA_RETURN_IF_ERROR(test_gpu());
  return run_isolated(absl::Seconds(60), [] { return nccl::open_api().status(); });
}

}  // namespace

bool is_test_gpu_asked_for() { return std::getenv("TESSERA_TEST_GPU") != nullptr; }

Status test_gpu() {
  static const Status found = find_gpu();
  return found;
}

Status test_gpu_with_nccl() {
  static const Status found = find_nccl();
  return found;
}

}  // namespace tessera::testing
