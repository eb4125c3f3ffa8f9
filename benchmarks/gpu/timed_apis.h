// SPDX-License-Identifier: Apache-2.0
//
// The functions of CUDA and of NCCL, with a log of each call.
//
//   job.hooks.cuda = timed_cuda(log, cuda::open_libraries);
//   job.hooks.nccl = timed_nccl(log, [] { return nccl::open_api(); });
//
// The first call opens the functions, so that a process may make these objects and fork. If that
// fails, each call returns the error.
#ifndef TESSERA_BENCHMARKS_GPU_TIMED_APIS_H_
#define TESSERA_BENCHMARKS_GPU_TIMED_APIS_H_

#include <functional>
#include <memory>

#include "base/status.h"
#include "benchmarks/gpu/call_log.h"
#include "collectives/nccl/api.h"
#include "compute/cuda/math_api.h"

namespace tessera::benchmarks {

std::shared_ptr<const cuda::Libraries> timed_cuda(
    std::shared_ptr<CallLog> log,
    std::function<StatusOr<std::shared_ptr<const cuda::Libraries>>()> open);
std::shared_ptr<nccl::Api> timed_nccl(std::shared_ptr<CallLog> log,
                                      std::function<StatusOr<std::shared_ptr<nccl::Api>>()> open);

}  // namespace tessera::benchmarks

#endif  // TESSERA_BENCHMARKS_GPU_TIMED_APIS_H_
