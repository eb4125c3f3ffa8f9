// SPDX-License-Identifier: Apache-2.0
//
// MemberInfo: the data that a client registers, and its name in messages.
#ifndef TESSERA_JOB_ENVIRONMENT_MEMBER_INFO_H_
#define TESSERA_JOB_ENVIRONMENT_MEMBER_INFO_H_

#include <cstdint>
#include <string>

namespace tessera {

struct MemberInfo {
  int client_id = 0;
  std::string host;          // name of the host
  std::string host_id;       // equal for two clients iff they are on one host (host.h)
  int64_t pid = 0;           // as the client sees it
  uint64_t incarnation = 0;  // random; tells a restarted client from its predecessor
  int num_local_devices = 0;
  std::string device_type;  // "cpu" or "cuda"
  std::string arithmetic;   // the arithmetic of its CPU (Arithmetic::to_string())
  // The version of Tessera that it registers; empty: build_text(). Unknown for other clients.
  std::string build;

  // "client 2 (host-b, pid 4711)".
  std::string to_string() const;
};

}  // namespace tessera

#endif  // TESSERA_JOB_ENVIRONMENT_MEMBER_INFO_H_
