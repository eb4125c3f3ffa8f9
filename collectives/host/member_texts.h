// SPDX-License-Identifier: Apache-2.0
//
// Texts of error messages about the members of a run: the difference between two members, and the
// missing members. Equal arguments give equal texts, so that all clients report one text.
#ifndef TESSERA_COLLECTIVES_HOST_MEMBER_TEXTS_H_
#define TESSERA_COLLECTIVES_HOST_MEMBER_TEXTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "collectives/host/op_record.h"
#include "collectives/signature.h"
#include "shm/group_table.h"

namespace tessera::host {

// A member's statement of its run.
struct Statement {
  std::string member;  // "client 1 (host-a, pid 7) device 3"
  Signature signature;
  int64_t part_count = 0;  // see MemberEntry
  std::string detail;
  std::string label;
};

// InvalidArgument naming the first field in which the signatures of two members differ; OK where
// they are equal. `detail_field`: see Arguments. `seq`: the number of the run in its group.
Status describe_difference(const Statement& a, const Statement& b, absl::string_view detail_field,
                           int num_members, uint32_t seq);

// "relayout #12" from "relayout #12 [x, -] -> [-, x] on {x=2}, ...": for messages that continue
// with the common part of both clients, or that name several operations. Labels without a number or
// with a quoted name are returned unchanged.
absl::string_view name_of_operation(absl::string_view label);

// The members that have not arrived.
struct Missing {
  std::string label;
  absl::Span<const shm::GroupMember> members;
  const std::vector<bool>& arrived;  // by member
  bool is_open = true;               // else all had arrived, and some had not finished
  absl::Duration waited;             // until the deadline
  size_t most_bytes = kVerdictBytes;
};
// DeadlineExceeded. `name_of` names a client; `last_seen` describes the activity of a member, and
// may be empty.
Status describe_missing(const Missing& missing, absl::FunctionRef<std::string(int client)> name_of,
                        absl::FunctionRef<std::string(const shm::GroupMember&)> last_seen);

// The text about the members in a report of a long wait: "1 of 2 clients arrived; missing client 1
// (host-a, pid 7), in user code for 12 s since relayout #6". `doing` gives the text after a
// client's name.
struct AwaitedMembers {
  absl::Span<const shm::GroupMember> members;
  const std::vector<bool>& awaited;  // by member
  bool all_arrived = false;          // they are awaited until they have finished
};
std::string describe_awaited(const AwaitedMembers& awaited,
                             absl::FunctionRef<std::string(int client)> name_of,
                             absl::FunctionRef<std::string(const shm::GroupMember&)> doing);

// A device among several that wait for each other.
struct ConflictingWait {
  int device_id = 0;
  std::string client;  // "client 1 (host-a, pid 7)"
  std::string label;
  std::vector<int> group;  // the ids of its devices
};
// InvalidArgument. The text does not depend on where the circle begins: it starts at the first
// device. Operations of one label differ in their groups.
Status describe_conflict(std::vector<ConflictingWait> waits);

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_MEMBER_TEXTS_H_
