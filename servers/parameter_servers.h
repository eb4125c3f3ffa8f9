// SPDX-License-Identifier: Apache-2.0
//
// ParameterServers: reads and writes the parameter servers, for a worker or for the chief.
//
// Calls are repeated for kPatience while a server does not answer. Then they fail as Unavailable,
// with the server, its address and the cause. The chief notices the loss of a server earlier, by
// its heartbeats, and ends the calls that wait for it.
//
// Thread-safe.
#ifndef TESSERA_SERVERS_PARAMETER_SERVERS_H_
#define TESSERA_SERVERS_PARAMETER_SERVERS_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/host_array.h"
#include "base/status.h"
#include "servers/pending_push.h"
#include "servers/push_ledger.h"
#include "servers/task_client.h"
#include "servers/tensor_message.h"
#include "servers/variable_place.h"

namespace tessera::distribute::internal {

// The time for which calls to an unreachable server are repeated.
inline constexpr absl::Duration kPatience = absl::Seconds(10);

class ParameterServers {
 public:
  using Address = TaskAddress;
  // `chief` identifies the coordinator of the servers.
  static StatusOr<std::unique_ptr<ParameterServers>> connect(uint64_t chief,
                                                             const std::vector<Address>& servers);

  int num_servers() const { return static_cast<int>(clients_.size()); }
  // Creates the shards of a variable on their servers.
  Status create(const VariablePlace& place, const HostArray& initial);
  // Reads the whole tensor, row-major; all shards at the same time.
  StatusOr<TensorBytes> read(const VariablePlace& place);
  // Stages the pushes of a run. Returns the number of pushes to each server.
  StatusOr<std::vector<int>> stage(const RunKey& run, absl::Span<const PendingPush> pushes);
  // Cancels calls under way and later calls.
  void close();

 private:
  // Sends requests[i] to servers[i], all at the same time. Returns the data of the ShardResponses.
  StatusOr<std::vector<TensorBytes>> call_all(const std::string& method,
                                              absl::Span<const int> servers,
                                              const std::vector<grpc::ByteBuffer>& requests);

  explicit ParameterServers(uint64_t chief) : chief_(chief) {}

  const uint64_t chief_;
  std::vector<std::unique_ptr<TaskClient>> clients_;
};

}  // namespace tessera::distribute::internal

#endif  // TESSERA_SERVERS_PARAMETER_SERVERS_H_
