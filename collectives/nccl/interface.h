// SPDX-License-Identifier: Apache-2.0
//
// The network interface that NCCL uses between hosts.
//
//   choose_interface();                        before NCCL is loaded
//   StatusOr<...> nccl = nccl::open_api();     its sockets are on $TESSERA_INTERFACE
#ifndef TESSERA_COLLECTIVES_NCCL_INTERFACE_H_
#define TESSERA_COLLECTIVES_NCCL_INTERFACE_H_

namespace tessera::nccl {

// Sets NCCL_SOCKET_IFNAME to the interface that TESSERA_INTERFACE names, if that is set and the
// user has not set NCCL_SOCKET_IFNAME. Like setenv(), it must not be called while other threads
// read the environment.
void choose_interface();

}  // namespace tessera::nccl

#endif  // TESSERA_COLLECTIVES_NCCL_INTERFACE_H_
