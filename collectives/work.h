// SPDX-License-Identifier: Apache-2.0
//
// Work: the handle of a collective that was started.
//
//   Work w = group.all_reduce(in, out, ReduceOp::kSum);
//   Status s = w.wait(absl::Seconds(5));
//   Status all = await_all({w, v});
//
// A Work that was moved from is done, with FailedPrecondition. Cheap to copy; all copies mean the
// same operation. Thread-safe. A Work may be dropped without waiting: the operation continues, and
// sync_devices() reports its error. PyTorch: c10d Work. NCCL: the stream, plus
// ncclCommGetAsyncError.
#ifndef TESSERA_COLLECTIVES_WORK_H_
#define TESSERA_COLLECTIVES_WORK_H_

#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/public.h"
#include "base/status.h"

namespace TESSERA_PUBLIC tessera {

class Work;
Status await_all(absl::Span<const Work> works, absl::Duration timeout);
namespace internal {
class PendingWork;
Work make_work(std::shared_ptr<PendingWork> pending);
}  // namespace internal

class Work {
 public:
  bool done() const;
  // Blocks until the operation is done; returns its status.
  Status await() const { return wait_until(absl::InfiniteFuture()); }
  // As await(), with a deadline over the operation: if a member has not arrived by then, all
  // members get the same DeadlineExceeded, which names it, and the group can be used again.
  Status wait(absl::Duration timeout) const;

 private:
  friend Status await_all(absl::Span<const Work> works, absl::Duration timeout);
  friend Work internal::make_work(std::shared_ptr<internal::PendingWork> pending);
  explicit Work(std::shared_ptr<internal::PendingWork> pending) : pending_(std::move(pending)) {}
  Status wait_until(absl::Time deadline) const;

  std::shared_ptr<internal::PendingWork> pending_;  // null: moved from
};

// Waits for all operations, also after one has failed. OK, or the error of the first operation in
// the list that failed, which need not be the operation that failed first. The timeout is one
// deadline over all operations; an operation that is not done by then ends as in Work::wait().
Status await_all(absl::Span<const Work> works, absl::Duration timeout = absl::InfiniteDuration());

}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_WORK_H_
