// SPDX-License-Identifier: Apache-2.0
//
// PendingWork: the state of a started operation in a back end, behind Work. Internal: programs use
// only work.h.
#ifndef TESSERA_COLLECTIVES_PENDING_WORK_H_
#define TESSERA_COLLECTIVES_PENDING_WORK_H_

#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "base/public.h"
#include "base/status.h"
#include "collectives/work.h"

namespace tessera::internal {

class TESSERA_INTERNAL PendingWork {
 public:
  virtual ~PendingWork() = default;
  virtual bool done() const = 0;
  // Blocks until the operation is done or `deadline` has passed. At the deadline it is given up for
  // all members, unless all of them had arrived. Returns the verdict, which is the same for all
  // members.
  virtual Status wait_until(absl::Time deadline) = 0;
};

// The handle of the operation.
inline Work make_work(std::shared_ptr<PendingWork> pending) { return Work(std::move(pending)); }

}  // namespace tessera::internal

#endif  // TESSERA_COLLECTIVES_PENDING_WORK_H_
