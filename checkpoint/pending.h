// SPDX-License-Identifier: Apache-2.0
//
// Saving in the background.
//
//   TESSERA_ASSIGN_OR_RETURN(const Pending pending, save_async(client, path, tensors));
//   ... the next steps; variables may be assigned ...
//   TESSERA_RETURN_IF_ERROR(pending.await());
//
// A DTensor is immutable, so that a save only holds its tensors: the call copies nothing, and a
// variable that is assigned meanwhile takes new memory. AsyncOptions bounds the memory.
//
// Saves become complete in the order of the calls. The error of a save that was never awaited is
// returned by the next save, by Client::sync_devices() or by Client::shutdown(), once. shutdown()
// waits for pending saves up to its timeout.
//
// Thread-safe. torch: distributed.checkpoint.async_save.
#ifndef TESSERA_CHECKPOINT_PENDING_H_
#define TESSERA_CHECKPOINT_PENDING_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/public.h"
#include "base/status.h"
#include "checkpoint/options.h"
#include "dtensor/client.h"
#include "files/array_files.h"

namespace TESSERA_PUBLIC tessera {
namespace checkpoint {

namespace internal {
class SaveState;
}  // namespace internal

// A handle: copies mean one save. Dropping it does not stop the save.
class Pending {
 public:
  explicit Pending(std::shared_ptr<internal::SaveState> state) : state_(std::move(state)) {}

  // Waits until the save is complete on all clients; its Status, equal on all.
  // DeadlineExceeded after the timeout names the clients whose data is not written, with the bytes
  // that they have reported; a later call can wait again. FailedPrecondition in a forked child, and
  // in a function on a device, where the save is not done. Local.
  Status await(absl::Duration timeout = absl::InfiniteDuration()) const;
  bool done() const;
  // By this client, so far.
  int64_t bytes_written() const;

 private:
  std::shared_ptr<internal::SaveState> state_;
};

// As save(), in the background: with Staging::kHold it returns at once. With kCopy it first waits
// for the tensors and copies them to memory of the host.
// - The call waits where max_pending saves are not complete, or while the tensors of pending saves
//   and of this one take more than max_held_bytes.
// - ResourceExhausted where the tensors alone exceed max_held_bytes.
// - The error of an earlier save that was never awaited; nothing is saved then.
// Other errors of save() are errors of await().
StatusOr<Pending> save_async(const Client& client, absl::string_view path,
                             absl::Span<const NamedTensor> tensors, const SaveOptions& options = {},
                             const AsyncOptions& async = {});

}  // namespace checkpoint
}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_PENDING_H_
