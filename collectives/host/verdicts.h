// SPDX-License-Identifier: Apache-2.0
//
// How a client settles an operation of a group without waiting: it makes an error the verdict that
// every member gets. A caller that needs the verdict itself calls Rendezvous::settle().
//
// Thread-safe. The caller may hold a lock.
#ifndef TESSERA_COLLECTIVES_HOST_VERDICTS_H_
#define TESSERA_COLLECTIVES_HOST_VERDICTS_H_

#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "base/status.h"
#include "collectives/host/group_records.h"
#include "collectives/host/record.h"
#include "shm/control.h"

namespace tessera::host {

// Makes an error the verdict, unless there is one or the operation is in a later phase than `from`
// allows. Returns the verdict, OK where the operation goes on; nullopt where another client settles
// the operation, or has settled it. `make_error` builds the error when it has become the verdict,
// or cannot become one, from the state that it ends.
std::optional<Status> try_settle(const GroupRecords& group, uint32_t seq, VerdictKind kind,
                                 Record::From from,
                                 absl::FunctionRef<Status(const State& before)> make_error);
// try_settle() with kError, for a caller that needs no verdict.
void settle_at_once(const GroupRecords& group, uint32_t seq, Record::From from,
                    const Status& error);
// settle_at_once() of every operation later than `done` that the member has arrived at, with its
// label before the error. The member must know of the error already, so that it begins no other.
void settle_arrived(const GroupRecords& group, int member, uint32_t done, Record::From from,
                    const Status& error);

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_VERDICTS_H_
