// SPDX-License-Identifier: Apache-2.0
//
// Settles an operation of a group for a client without waiting: makes an error the verdict that
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
// allows. Returns the verdict, OK where the operation continues; nullopt where another client
// settles the operation, or has settled it. `make_error` builds the error from the state that it
// ends, after the error has become the verdict or cannot become one.
std::optional<Status> try_settle(const GroupRecords& group, uint32_t seq, VerdictKind kind,
                                 Record::From from,
                                 absl::FunctionRef<Status(const State& before)> make_error);
// try_settle() with kError, for a caller that needs no verdict.
void settle_at_once(const GroupRecords& group, uint32_t seq, Record::From from,
                    const Status& error);
// Calls settle_at_once() for every operation later than `done` at which the member has arrived,
// with its label before the error. The member must know of the error already, so that it begins no
// other operation.
void settle_arrived(const GroupRecords& group, int member, uint32_t done, Record::From from,
                    const Status& error);

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_VERDICTS_H_
