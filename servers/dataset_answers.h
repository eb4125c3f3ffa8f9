// SPDX-License-Identifier: Apache-2.0
//
// DatasetAnswers: collects the answers of workers that make a per-worker data set.
//
//   auto answers = std::make_shared<DatasetAnswers>("train", 2);
//   answers->add("worker 0 (host-a:4000)", status, response);     by the callback of each call
//   StatusOr<std::optional<Spec>> spec = answers->wait();
//
// Thread-safe.
#ifndef TESSERA_SERVERS_DATASET_ANSWERS_H_
#define TESSERA_SERVERS_DATASET_ANSWERS_H_

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "input/source.h"
#include "tessera/servers/parameter_server.pb.h"

namespace tessera::distribute::internal {

class DatasetAnswers {
 public:
  using Spec = std::vector<input::TensorSpec>;

  DatasetAnswers(absl::string_view dataset, int num_calls)
      : dataset_(dataset), num_left_(num_calls) {}

  void add(const std::string& worker, const grpc::Status& status,
           const rpc::MakeDatasetResponse& response);
  // Waits for all calls. Returns the spec of the batches, merged over the workers that have made
  // the data set, or the error of the first worker by name that failed. Returns nothing if all are
  // lost.
  StatusOr<std::optional<Spec>> wait();

 private:
  const std::string dataset_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  int num_left_;
  std::map<std::string, StatusOr<Spec>> answers_;  // by worker; lost workers have none
};

// Merges two specs: a size in which they differ becomes -1, and an empty spec has no effect.
// Returns nothing if they differ in the number, the dtypes or the ranks of tensors.
std::optional<DatasetAnswers::Spec> merge_specs(const DatasetAnswers::Spec& a,
                                                const DatasetAnswers::Spec& b);

}  // namespace tessera::distribute::internal

#endif  // TESSERA_SERVERS_DATASET_ANSWERS_H_
