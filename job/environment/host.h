// SPDX-License-Identifier: Apache-2.0
//
// The identity of this process, which a client sends to the coordinator; and secrets made at
// random.
#ifndef TESSERA_JOB_ENVIRONMENT_HOST_H_
#define TESSERA_JOB_ENVIRONMENT_HOST_H_

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "job/environment/member_info.h"

namespace tessera {

// Host name and id, pid and a random incarnation; the rest is left to the caller.
//
// Clients of one host can map each other's memory. So a host is one kernel (its boot id), network
// namespace and PID namespace: containers on one machine are several hosts. $TESSERA_HOST_ID
// replaces all three.
MemberInfo describe_this_process();
// The name of the host; "unknown-host" where the system gives none.
std::string host_name();
// The id of this boot of the kernel; empty where /proc is hidden.
std::string boot_id();
// InvalidArgument unless $TESSERA_HOST_ID, or `asked`, is null or can be the id of a host.
Status check_host_id();
Status check_host_id(const char* asked);

// Whether two clients are on one host: each can map the other's memory, and equal places of GPUs
// mean one GPU. Names of hosts and pids do not show that.
bool are_on_one_host(const MemberInfo& a, const MemberInfo& b);
// Whether two clients may be in one network namespace, where one reaches the other by a loopback
// address: false where the kernel distinguishes them, true where the user has set the id of a host.
bool may_share_loopback(const MemberInfo& a, const MemberInfo& b);
// The number of each client's host, by client: hosts are numbered from 0 in the order of their
// first clients. Equal on every client of the job.
std::vector<int> number_hosts(absl::Span<const MemberInfo> members);

// 128 random bits in hex.
std::string random_token();

}  // namespace tessera

#endif  // TESSERA_JOB_ENVIRONMENT_HOST_H_
