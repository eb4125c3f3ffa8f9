// SPDX-License-Identifier: Apache-2.0
//
// The identity of this process: what a client tells the coordinator of itself, and secrets made at
// random.
#ifndef TESSERA_JOB_HOST_H_
#define TESSERA_JOB_HOST_H_

#include <string>

#include "job/coordinator.h"

namespace tessera {

// Host name, boot id, pid and a random incarnation; the rest is left to the caller.
MemberInfo describe_this_process();

// 128 random bits in hex.
std::string random_token();

}  // namespace tessera

#endif  // TESSERA_JOB_HOST_H_
