// SPDX-License-Identifier: Apache-2.0
#include "collectives/work.h"

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/pending_work.h"

namespace tessera {

bool Work::done() const { return pending_ == nullptr || pending_->done(); }

Status Work::wait(absl::Duration timeout) const { return wait_until(steady_now() + timeout); }

Status Work::wait_until(absl::Time deadline) const {
  if (pending_ != nullptr) return pending_->wait_until(deadline);
  return absl::FailedPreconditionError(
      "the Work was moved from; wait on the Work that it was moved to");
}

Status await_all(absl::Span<const Work> works, absl::Duration timeout) {
  const absl::Time deadline = steady_now() + timeout;
  Status first;
  for (const Work& work : works) first.Update(work.wait_until(deadline));
  return first;
}

}  // namespace tessera
