// SPDX-License-Identifier: Apache-2.0
//
// Whether tests use a GPU of this machine: where $TESSERA_TEST_GPU is set, and there is one.
//
//   if (Status gpu = test_gpu(); !gpu.ok()) GTEST_SKIP() << gpu;
//
// A process that forks must not have used CUDA: so a child finds it out, once.
#ifndef TESSERA_TESTS_SUPPORT_GPU_H_
#define TESSERA_TESTS_SUPPORT_GPU_H_

#include "base/status.h"

namespace tessera::testing {

// Whether the variable is set. For lists of cases.
bool is_test_gpu_asked_for();

// OK where a process can use a GPU; else the reason.
Status test_gpu();

// As test_gpu(), for NCCL as well.
Status test_gpu_with_nccl();

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_GPU_H_
