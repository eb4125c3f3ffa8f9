// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/pending.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "checkpoint/call_agreement.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/client_state.h"
#include "checkpoint/save_async.h"
#include "checkpoint/save_request.h"
#include "checkpoint/saver.h"
#include "dtensor/client_messages.h"
#include "dtensor/rounds.h"

namespace tessera::checkpoint {

Status Pending::await(absl::Duration timeout) const { return state_->await(timeout); }

bool Pending::done() const { return state_->is_done(); }

int64_t Pending::bytes_written() const { return state_->bytes_written.load(); }

Status save(const Client& client, absl::string_view path, absl::Span<const NamedTensor> tensors,
            const SaveOptions& options) {
  TESSERA_RETURN_IF_ERROR(tessera::internal::check_open(client, "save"));
  // A round among those of the calling thread: a client that makes another collective call gets an
  // error here. The saver would wait for the save of that client.
  TESSERA_RETURN_IF_ERROR(internal::agree_on_call(client, tessera::internal::rounds_of(client),
                                                  {absl::StrCat("save ", quoted_whole(path)), {}},
                                                  absl::OkStatus(), [] { return std::string(); })
                              .status());
  internal::Saver& saver = internal::ClientState::of(client).saver();
  std::unique_ptr<internal::SaveRequest> request =
      internal::make_request(client, path, tensors, options);
  request->refused.Update(saver.take_error());
  const std::shared_ptr<internal::SaveState> state = request->state;
  TESSERA_RETURN_IF_ERROR(saver.admit(*request, /*limits=*/nullptr));
  saver.enqueue(std::move(request));
  return state->await(absl::InfiniteDuration());
}

StatusOr<Pending> save_async(const Client& client, absl::string_view path,
                             absl::Span<const NamedTensor> tensors, const SaveOptions& options,
                             const AsyncOptions& async) {
  return internal::save_async_then(client, path, tensors, options, async, nullptr);
}

StatusOr<Pending> internal::save_async_then(const Client& client, absl::string_view path,
                                            absl::Span<const NamedTensor> tensors,
                                            const SaveOptions& options, const AsyncOptions& async,
                                            std::function<void()> when_complete) {
  TESSERA_RETURN_IF_ERROR(tessera::internal::check_open(client, "save_async"));
  Saver& saver = ClientState::of(client).saver();
  std::unique_ptr<SaveRequest> request = make_request(client, path, tensors, options);
  request->when_complete = std::move(when_complete);
  if (async.max_pending < 1 || async.max_held_bytes < 0) {
    request->refused.Update(absl::InvalidArgumentError(
        absl::StrCat("max_pending is ", async.max_pending, " and max_held_bytes is ",
                     async.max_held_bytes, "; give at least 1 and 0")));
  }
  // A call that fails here takes part in the first round: the other clients get the error there.
  Status status = saver.take_error();
  request->refused.Update(status);
  status.Update(saver.admit(*request, &async));
  // After the saves whose copies this one has to wait for.
  if (async.staging == AsyncOptions::Staging::kCopy) copy_tensors(*request);
  const std::shared_ptr<SaveState> state = request->state;
  saver.enqueue(std::move(request));
  if (status.ok()) return Pending(state);
  state->disown();
  return status;
}

}  // namespace tessera::checkpoint
