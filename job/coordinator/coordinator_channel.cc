// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator/coordinator_channel.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/escaping.h"

namespace tessera {

std::string token_metadata(const std::string& token) { return absl::BytesToHexString(token); }

bool carries_token(const grpc::CallbackServerContext& context, const std::string& metadata) {
  const auto it = context.client_metadata().find(kTokenMetadata);
  if (it == context.client_metadata().end() || it->second.size() != metadata.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < metadata.size(); ++i) {
    difference |=
        static_cast<unsigned char>(it->second.data()[i]) ^ static_cast<unsigned char>(metadata[i]);
  }
  return difference == 0;
}

std::shared_ptr<grpc::Channel> create_coordinator_channel(const std::string& address,
                                                          int num_clients) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Clients that are threads of one process must not share a connection.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // A client may start before the service does, which refuses it: retry soon, but all clients
  // together no more than some 500 times a second. gRPC adds jitter.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS,
                   std::clamp(2 * std::min(num_clients, 1000), 100, 2000));
  // How long an attempt may take. A service that many clients reach at once answers late; an
  // attempt that is given up meanwhile costs it one more connection.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetMaxReceiveMessageSize(-1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace tessera
