// SPDX-License-Identifier: Apache-2.0
//
// The contract of nccl::Api: what every implementation does, as one table.
//
//   {"group_of_sends_and_receives", 3, body}     each of 3 ranks runs body on a GPU of its own
//
// contract_test.cc runs it on the double, and on NCCL where there are as many GPUs.
#ifndef TESSERA_COLLECTIVES_NCCL_CONTRACT_H_
#define TESSERA_COLLECTIVES_NCCL_CONTRACT_H_

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "base/status.h"
#include "collectives/nccl/api.h"
#include "device/cuda/api.h"

namespace tessera::nccl {

struct ContractCase {
  std::string name;
  int num_ranks;
  // Runs all ranks, each on a thread; the first error.
  std::function<Status(cuda::Api&, Api&)> body;
};
inline void PrintTo(const ContractCase& c, std::ostream* out) { *out << c.name; }

std::vector<ContractCase> contract_cases();

}  // namespace tessera::nccl

#endif  // TESSERA_COLLECTIVES_NCCL_CONTRACT_H_
