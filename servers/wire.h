// SPDX-License-Identifier: Apache-2.0
//
// Converts between the messages of parameter_server.proto and the values that they carry.
#ifndef TESSERA_SERVERS_WIRE_H_
#define TESSERA_SERVERS_WIRE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/host_array.h"
#include "base/status.h"
#include "input/source.h"
#include "servers/function_registry.h"
#include "servers/handle_access.h"
#include "servers/push_ledger.h"
#include "servers/tensor_message.h"
#include "tessera/servers/parameter_server.pb.h"

namespace tessera::distribute::internal {

void set_array(rpc::Array* message, const HostArray& array);
// InvalidArgument for a message that is not a valid array.
StatusOr<HostArray> array_of(const rpc::Array& message);
// Reads the head and the data of a shard to create.
StatusOr<HostArray> array_of(const rpc::CreateRequest::Head& head, const TensorBytes& data);

void set_spec(google::protobuf::RepeatedPtrField<rpc::TensorSpec>* messages,
              absl::Span<const input::TensorSpec> spec);
StatusOr<std::vector<input::TensorSpec>> spec_of(
    const google::protobuf::RepeatedPtrField<rpc::TensorSpec>& messages);

// Does not set the position.
void set_dataset(rpc::Dataset* message, const DatasetPlace& place);
StatusOr<DatasetPlace> dataset_of(const rpc::Dataset& message, uint64_t chief);

void set_argument(rpc::Argument* message, const Argument& argument);
// InvalidArgument for a message that is not a valid argument on a cluster with `num_ps` parameter
// servers.
StatusOr<Argument> argument_of(const rpc::Argument& message, uint64_t chief, int num_ps);

void set_update(rpc::UpdateRequest* message, const ServerUpdate& update);
ServerUpdate update_of(const rpc::UpdateRequest& message);

}  // namespace tessera::distribute::internal

#endif  // TESSERA_SERVERS_WIRE_H_
