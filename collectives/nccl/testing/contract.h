// SPDX-License-Identifier: Apache-2.0
//
// The contract of nccl::Api: the behaviour of every implementation, as one table.
//
//   {"group_of_sends_and_receives", 3, body}     each of 3 ranks runs body
//
// contract_test.cc runs it on the fake, and on NCCL where there are as many GPUs, with ranks that
// are threads; //tests/gpu:clients_test with ranks that are processes and share one GPU.
#ifndef TESSERA_COLLECTIVES_NCCL_TESTING_CONTRACT_H_
#define TESSERA_COLLECTIVES_NCCL_TESTING_CONTRACT_H_

#include <pthread.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "base/status.h"
#include "collectives/nccl/api.h"
#include "device/cuda/api.h"

namespace tessera::nccl {

// The meeting place of the ranks of a case: threads, or processes that map the same memory. Zeros
// until open() was called, once.
struct Meeting {
  void open(int num_ranks);
  // Waits until all ranks have called it.
  void arrive_and_wait() { pthread_barrier_wait(&barrier); }

  pthread_barrier_t barrier = {};
  UniqueId id = {};
};

struct ContractCase {
  // Runs all ranks, each on a thread; the first error. Each has a GPU of its own, or all GPU 0.
  Status body(cuda::Api& cuda, Api& nccl, bool shares_gpu = false) const;

  std::string name;
  int num_ranks;
  // Runs one rank on a GPU.
  std::function<Status(cuda::Api&, Api&, Meeting&, int rank, int gpu)> run_rank;
};
inline void PrintTo(const ContractCase& c, std::ostream* out) { *out << c.name; }

std::vector<ContractCase> contract_cases();

}  // namespace tessera::nccl

#endif  // TESSERA_COLLECTIVES_NCCL_TESTING_CONTRACT_H_
