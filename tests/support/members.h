// SPDX-License-Identifier: Apache-2.0
//
// run_members: the devices of a client as members of the conformance suite of collectives.
//
//   run_members(client, {0, 1, 2, 3}, c.body)     a thread for each local device in the list
//
// The suite has memory of the host: where devices are GPUs, it is staged to them and back.
#ifndef TESSERA_TESTS_SUPPORT_MEMBERS_H_
#define TESSERA_TESTS_SUPPORT_MEMBERS_H_

#include <vector>

#include "base/status.h"
#include "collectives/testing/conformance.h"
#include "dtensor/client.h"

namespace tessera::testing {

// All devices of the job, in order.
std::vector<int> all_devices(const Client& client);

// Runs `body` on every local device that is in the list, as the member at that place of a group of
// these devices. The first error.
Status run_members(const Client& client, const std::vector<int>& device_ids,
                   const conformance::MemberBody& body);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_MEMBERS_H_
