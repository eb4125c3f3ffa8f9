// SPDX-License-Identifier: Apache-2.0
//
// BackgroundWork: work of a layer above in threads of its own, which sync_devices() and shutdown()
// of its client know. Internal, for checkpoint/.
//
//   sync_devices()   returns take_error()
//   shutdown()       finish(), then leaves the job
//   ~Runtime         destroys the object, which ends its threads
//
// The object belongs to the client, and must not hold it, except for work that is not finished.
//
// Thread-safe.
#ifndef TESSERA_DTENSOR_BACKGROUND_WORK_H_
#define TESSERA_DTENSOR_BACKGROUND_WORK_H_

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "dtensor/client.h"

namespace tessera::internal {

class BackgroundWork {
 public:
  // Ends the threads. Called by none of them, when no work is left.
  virtual ~BackgroundWork() = default;
  // The first error of finished work that no caller has taken, which this call takes.
  virtual Status take_error() = 0;
  // Waits until all work is finished. DeadlineExceeded where work is left.
  virtual Status finish(absl::Time deadline) = 0;
  // Whether the calling thread is one of its threads.
  virtual bool is_current() const = 0;
};

// The work of this client, which the first call makes. Requires a client that was not moved from.
BackgroundWork& background_work_of(const Client& client,
                                   absl::FunctionRef<std::unique_ptr<BackgroundWork>()> make);

}  // namespace tessera::internal

#endif  // TESSERA_DTENSOR_BACKGROUND_WORK_H_
