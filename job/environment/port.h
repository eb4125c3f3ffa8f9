// SPDX-License-Identifier: Apache-2.0
//
// ReservedPort: a free loopback port that no other program gets, for a service that another process
// will open.
//
// The port is held by a socket that is bound but does not listen. With SO_REUSEPORT on both, the
// service (gRPC sets it by default) binds the same port, and connections reach only the socket that
// listens. SO_REUSEADDR on both does as well, for the servers of other libraries at MASTER_PORT.
#ifndef TESSERA_JOB_ENVIRONMENT_PORT_H_
#define TESSERA_JOB_ENVIRONMENT_PORT_H_

#include "base/status.h"

namespace tessera {

class ReservedPort {
 public:
  // A free port of 127.0.0.1, held as long as the object lives.
  static StatusOr<ReservedPort> create();
  ReservedPort(ReservedPort&& other) noexcept;
  ReservedPort& operator=(ReservedPort&& other) noexcept;
  ~ReservedPort();

  int port() const { return port_; }

 private:
  ReservedPort(int socket, int port) : socket_(socket), port_(port) {}

  int socket_;
  int port_;
};

}  // namespace tessera

#endif  // TESSERA_JOB_ENVIRONMENT_PORT_H_
