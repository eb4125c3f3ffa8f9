// SPDX-License-Identifier: Apache-2.0
//
// HostMembers: the clients of the job, and which of them are on the host of this client.
//
// Immutable; safe to read from any thread. The coordinator must outlive it.
#ifndef TESSERA_SHM_HOST_MEMBERS_H_
#define TESSERA_SHM_HOST_MEMBERS_H_

#include "job/coordinator/coordinator.h"
#include "job/environment/host.h"

namespace tessera::shm {

class HostMembers {
 public:
  explicit HostMembers(const Coordinator& coordinator)
      : coordinator_(coordinator),
        client_id_(coordinator.client_id()),
        num_clients_(coordinator.num_clients()) {}

  int client_id() const { return client_id_; }
  int num_clients() const { return num_clients_; }
  const MemberInfo& operator[](int client) const { return coordinator_.members()[client]; }
  const MemberInfo& self() const { return (*this)[client_id_]; }

  // Whether the client is on this host. True for this client.
  bool is_on_host(int client) const { return are_on_one_host((*this)[client], self()); }
  int num_on_host() const {
    int num = 0;
    for (int i = 0; i < num_clients_; ++i) num += is_on_host(i) ? 1 : 0;
    return num;
  }
  int num_devices_on_host() const {
    int num = 0;
    for (int i = 0; i < num_clients_; ++i) num += is_on_host(i) ? (*this)[i].num_local_devices : 0;
    return num;
  }

 private:
  const Coordinator& coordinator_;
  const int client_id_;
  const int num_clients_;
};

}  // namespace tessera::shm

#endif  // TESSERA_SHM_HOST_MEMBERS_H_
