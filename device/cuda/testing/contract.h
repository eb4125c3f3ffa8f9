// SPDX-License-Identifier: Apache-2.0
//
// The contract of Api: the behaviour of every implementation, as one table.
//
//   {"event_orders_streams", body}     OK: exactly as CUDA has it
//
// contract_test.cc runs it on the fake, and contract_on_gpu_test.cc on the toolkit's functions
// where there is a GPU: this keeps the fake equal to CUDA.
#ifndef TESSERA_DEVICE_CUDA_TESTING_CONTRACT_H_
#define TESSERA_DEVICE_CUDA_TESTING_CONTRACT_H_

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/cuda/api.h"

namespace tessera::cuda {

struct ContractCase {
  std::string name;
  std::function<Status(Api&)> body;
};
inline void PrintTo(const ContractCase& c, std::ostream* out) { *out << c.name; }

// Streams, events and copies; each kernel against loops over scalars that share no code with it.
std::vector<ContractCase> contract_cases();

}  // namespace tessera::cuda

#endif  // TESSERA_DEVICE_CUDA_TESTING_CONTRACT_H_
