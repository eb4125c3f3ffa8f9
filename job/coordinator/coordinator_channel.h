// SPDX-License-Identifier: Apache-2.0
//
// The gRPC connection to a coordinator, to the relay of a host, or to another service of a job; and
// the token that each call carries.
#ifndef TESSERA_JOB_COORDINATOR_COORDINATOR_CHANNEL_H_
#define TESSERA_JOB_COORDINATOR_COORDINATOR_CHANNEL_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

namespace tessera {

// The metadata that clients attach to each call: the token in hexadecimal, so that it may have any
// bytes.
inline constexpr char kTokenMetadata[] = "tessera-token";
std::string token_metadata(const std::string& token);
// Whether a call carries the token, which is given as metadata. Takes a time that depends on the
// lengths alone.
bool carries_token(const grpc::CallbackServerContext& context, const std::string& metadata);

// A separate connection for a client of a job with so many clients. It waits for a service that
// does not run yet, and retries as quickly as the number of clients allows.
std::shared_ptr<grpc::Channel> create_coordinator_channel(const std::string& address,
                                                          int num_clients);

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_COORDINATOR_CHANNEL_H_
