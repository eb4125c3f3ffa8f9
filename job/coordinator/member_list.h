// SPDX-License-Identifier: Apache-2.0
//
// The list of all members of a job as one message: rpc::MemberList. It is stored by columns, and a
// text that several members share is stored once.
//
// Each client gets the list once, so a job of N clients sends its bytes N times. So the size of a
// member matters: 66 bytes with one client on a host, 26 with eight.
#ifndef TESSERA_JOB_COORDINATOR_MEMBER_LIST_H_
#define TESSERA_JOB_COORDINATOR_MEMBER_LIST_H_

#include <optional>
#include <string>
#include <vector>

#include "job/coordinator/coordinator.h"

namespace tessera {

// All members in the order of their ids, 0 to N - 1.
std::string encode_members(const std::vector<MemberInfo>& members);

// The members without their builds. Empty: bytes that are no list of so many.
std::optional<std::vector<MemberInfo>> decode_members(const std::string& bytes, int num_clients);

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_MEMBER_LIST_H_
