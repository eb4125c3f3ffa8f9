// SPDX-License-Identifier: Apache-2.0
//
// The contract of MathApi: what every implementation does, as one table. Its kernels are held to
// those of the host by tests/gpu/engines_test.cc.
//
// math_contract_test.cc runs it on the fake, and math_contract_on_gpu_test.cc on the toolkit's
// functions where there is a GPU.
#ifndef TESSERA_COMPUTE_CUDA_TESTING_MATH_CONTRACT_H_
#define TESSERA_COMPUTE_CUDA_TESTING_MATH_CONTRACT_H_

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "base/status.h"
#include "compute/cuda/math_api.h"

namespace tessera::cuda {

struct MathContractCase {
  std::string name;
  std::function<Status(const Libraries&)> body;
};
inline void PrintTo(const MathContractCase& c, std::ostream* out) { *out << c.name; }

// Products, against loops over scalars that share no code with them.
std::vector<MathContractCase> math_contract_cases();

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_CUDA_TESTING_MATH_CONTRACT_H_
