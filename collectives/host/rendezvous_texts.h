// SPDX-License-Identifier: Apache-2.0
//
// The messages of the operations of a group: the missing members, and the differences between
// members.
//
// Thread-safe.
#ifndef TESSERA_COLLECTIVES_HOST_RENDEZVOUS_TEXTS_H_
#define TESSERA_COLLECTIVES_HOST_RENDEZVOUS_TEXTS_H_

#include <cstdint>
#include <string>

#include "base/status.h"
#include "collectives/host/group_records.h"
#include "collectives/host/member_texts.h"
#include "collectives/host/op_record.h"

namespace tessera::host {

// The error of an operation that has waited in vain. `before`: its state; the names are exact if it
// does not change meanwhile.
Status describe_missing(const GroupRecords& group, const MemberOp& op, const State& before);
Status describe_missing(const GroupRecords& group, const MemberOp& op);
// As describe_missing(), for an operation whose record is not free: the missing members are not
// done with the operation that has the record.
Status describe_behind(const GroupRecords& group, const MemberOp& op);
// The error where a member has arrived with another signature than `op`'s member; OK where there is
// none.
Status find_mismatch(const GroupRecords& group, const MemberOp& op);

// The member's statement of its run, from its entry.
Statement statement_of(const GroupRecords& group, int member, const MemberEntry& entry);
// The name of an operation in messages.
std::string label_of(const GroupRecords& group, const MemberOp& op);
std::string label_of(const GroupRecords& group, const MemberEntry& entry);
// "all_reduce ... (operation 12 of the group)"; without `op`, the number and the devices.
std::string name_of(const GroupRecords& group, uint32_t seq, const MemberOp* op);

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_RENDEZVOUS_TEXTS_H_
