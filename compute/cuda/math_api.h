// SPDX-License-Identifier: Apache-2.0
//
// MathApi: what Tessera asks a GPU to compute, beside the functions of the CUDA runtime (Api).
//
//   math.load_kernels()                        once for each GPU
//   math.launch(reduce_dims, stream)           enqueues, and returns
//
// Two implementations: the toolkit's (open_libraries.h), and the fake (fake/fake_math.h), which
// runs on any machine. testing/math_contract.h holds both to one table.
//
// Threads and errors are those of Api.
#ifndef TESSERA_COMPUTE_CUDA_MATH_API_H_
#define TESSERA_COMPUTE_CUDA_MATH_API_H_

#include <memory>
#include <variant>

#include "base/status.h"
#include "compute/cuda/gemm.h"
#include "compute/cuda/math.h"
#include "device/cuda/api.h"

namespace tessera::cuda {

using MathKernel = std::variant<Map, ReduceDims, CumSum, ArgExtreme, MergePass, TakeOrdered,
                                CheckIndices, ReportIndex, Take, ScatterAdd, OneHot, Pick,
                                MaskLater, Image, Draw, Step, Product>;

class MathApi {
 public:
  virtual ~MathApi() = default;

  // Loads the kernels of launch() on the current GPU, as Api::load_kernels().
  virtual Status load_kernels() = 0;
  // Runs a kernel of at least one item on a stream of the current GPU.
  virtual Status launch(const MathKernel& kernel, StreamHandle stream) = 0;
  // Gives a stream of the current GPU products of floats. Asks for a workspace where it helps, at
  // most once, and does without where there is no memory for it: the last bits of the result may
  // depend on which. Each of the two gives the same bits each time for the same matrices at the
  // same alignment. cublasLtMatmul; Unimplemented, with what to install, where cuBLASLt is not
  // there.
  virtual Status multiply(const Gemm& gemm, WorkspaceSource workspace, StreamHandle stream) = 0;
};

// The functions by which a client uses GPUs. Neither is null.
struct Libraries {
  std::shared_ptr<Api> cuda;
  std::shared_ptr<MathApi> math;
};

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_CUDA_MATH_API_H_
