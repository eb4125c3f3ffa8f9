// SPDX-License-Identifier: Apache-2.0
//
// PendingWork: the state of a started operation in a back end, behind Work. Internal: programs use
// only work.h.
#ifndef TESSERA_COLLECTIVES_PENDING_WORK_H_
#define TESSERA_COLLECTIVES_PENDING_WORK_H_

#include "absl/time/time.h"
#include "base/status.h"

namespace tessera {

class PendingWork {
 public:
  virtual ~PendingWork() = default;
  virtual bool done() const = 0;
  // Blocks until the operation is done or `deadline` has passed. At the deadline it is given up for
  // all members, unless all of them had arrived. Returns the verdict, which is the same for all
  // members.
  virtual Status wait_until(absl::Time deadline) = 0;
};

}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_PENDING_WORK_H_
