// SPDX-License-Identifier: Apache-2.0
//
// PendingWork: what a back end keeps of one started operation, behind Work. Internal: programs see
// work.h alone.
#ifndef TESSERA_COLLECTIVES_PENDING_WORK_H_
#define TESSERA_COLLECTIVES_PENDING_WORK_H_

#include "absl/time/time.h"
#include "base/status.h"

namespace tessera {

class PendingWork {
 public:
  virtual ~PendingWork() = default;
  virtual bool done() const = 0;
  // Blocks until the operation is done or `deadline` has passed; then it is given up for all
  // members, unless all of them had arrived. Returns the verdict that all members get.
  virtual Status wait_until(absl::Time deadline) = 0;
};

}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_PENDING_WORK_H_
