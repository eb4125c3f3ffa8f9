// SPDX-License-Identifier: Apache-2.0
//
// save_async() with work that follows the save. Internal to checkpoint/.
#ifndef TESSERA_CHECKPOINT_SAVE_ASYNC_H_
#define TESSERA_CHECKPOINT_SAVE_ASYNC_H_

#include <functional>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "checkpoint/options.h"
#include "checkpoint/pending.h"
#include "dtensor/client.h"
#include "files/array_files.h"

namespace tessera::checkpoint::internal {

// `when_complete` is called on client 0 by the thread of the saver, after the checkpoint is
// complete and before await() returns. Null: nothing.
StatusOr<Pending> save_async_then(const Client& client, absl::string_view path,
                                  absl::Span<const NamedTensor> tensors, const SaveOptions& options,
                                  const AsyncOptions& async, std::function<void()> when_complete);

}  // namespace tessera::checkpoint::internal

#endif  // TESSERA_CHECKPOINT_SAVE_ASYNC_H_
