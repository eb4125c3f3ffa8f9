// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpointer.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "checkpoint/call_agreement.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/client_state.h"
#include "checkpoint/leftovers.h"
#include "checkpoint/names.h"
#include "checkpoint/preemption.h"
#include "checkpoint/save_async.h"
#include "checkpoint/source.h"
#include "dtensor/client_messages.h"
#include "dtensor/rounds.h"
#include "files/new_file.h"

namespace tessera::checkpoint {
namespace {

using tessera::internal::Rounds;

// Removes the checkpoints of a run that its options do not keep. Folders that have other names than
// the run gave are the user's. `saved`: the step of the last save, which stays: a run that went
// back saves steps below those of its root.
void remove_old(const std::string& root, int64_t saved, int keep_last, int64_t keep_every,
                internal::Sync sync) {
  const StatusOr<std::vector<Entry>> entries = list(root);
  if (!entries.ok()) return;
  std::vector<Entry> own;
  for (const Entry& entry : *entries) {
    if (entry.status.ok() && internal::last_part(entry.path) == internal::step_name(entry.step) &&
        internal::is_real_folder(entry.path)) {
      own.push_back(entry);
    }
  }
  for (size_t i = 0; i + static_cast<size_t>(keep_last) < own.size(); ++i) {
    if (own[i].step == saved || (keep_every > 0 && own[i].step % keep_every == 0)) continue;
    // The next save tries again to remove a checkpoint that cannot be removed now.
    internal::remove_checkpoint(own[i].path, sync).IgnoreError();
  }
}

Status clean(const std::string& root) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> made, files::make_folders(root));
  for (const std::string& folder : made) {
    TESSERA_RETURN_IF_ERROR(files::sync_folder(files::folder_of(folder)));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<internal::Leftover> leftovers,
                           internal::find_leftovers(root));
  for (const internal::Leftover& leftover : leftovers) {
    TESSERA_RETURN_IF_ERROR(internal::remove_leftover(leftover));
  }
  return absl::OkStatus();
}

}  // namespace

struct Checkpointer::Run {
  Client client;
  std::string root;
  RunOptions options;
  std::unique_ptr<internal::Preemption> preemption;
};

void Checkpointer::EndRun::operator()(Run* run) const {
  if (tessera::internal::check_process(run->client).ok()) {
    delete run;
    return;
  }
  // Never destroyed, which leak checkers see so.
  static auto& kept = *new std::vector<Run*>;
  kept.push_back(run);
}

Checkpointer::Checkpointer(OwnedRun run) : run_(std::move(run)) {}
Checkpointer::Checkpointer(Checkpointer&&) noexcept = default;
Checkpointer& Checkpointer::operator=(Checkpointer&&) noexcept = default;
Checkpointer::~Checkpointer() = default;

StatusOr<Checkpointer> Checkpointer::open(const Client& client, std::string root,
                                          const RunOptions& options) {
  TESSERA_RETURN_IF_ERROR(tessera::internal::check_open(client, "Checkpointer::open"));
  Rounds& rounds = tessera::internal::rounds_of(client);
  const internal::CallText text = {absl::StrCat("Checkpointer::open ", quoted_whole(root)),
                                   {absl::StrCat("keep_last ", options.keep_last, ", keep_every ",
                                                 options.keep_every, ", signal ", options.signal)}};
  Status refused;
  if (options.keep_last < 0 || options.keep_every < 0) {
    refused = absl::InvalidArgumentError(absl::StrCat("keep_last is ", options.keep_last,
                                                      " and keep_every is ", options.keep_every,
                                                      "; give 0 or more"));
  }
  TESSERA_RETURN_IF_ERROR(
      internal::agree_on_call(client, rounds, text, refused, [&]() -> Rounds::Value {
        TESSERA_RETURN_IF_ERROR(clean(root));
        return std::string();
      }).status());
  StatusOr<std::unique_ptr<internal::Preemption>> preemption = internal::Preemption::start(
      client, internal::ClientState::of(client).next_run(), options.signal);
  TESSERA_RETURN_IF_ERROR(rounds.agree_ok(client, text.call, preemption.status()));
  return Checkpointer(OwnedRun(new Run{client, std::move(root), options, *std::move(preemption)}));
}

Status Checkpointer::check_not_moved_from() const {
  if (run_ != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the Checkpointer was moved from; use the one that it was moved to");
}

StatusOr<Pending> Checkpointer::save(int64_t step, absl::Span<const NamedTensor> tensors,
                                     std::map<std::string, std::string> metadata) {
  TESSERA_RETURN_IF_ERROR(check_not_moved_from());
  SaveOptions options = run_->options.save;
  options.step = step;
  options.metadata = std::move(metadata);
  std::function<void()> when_complete;
  if (run_->options.keep_last > 0) {
    when_complete = [root = run_->root, step, keep_last = run_->options.keep_last,
                     keep_every = run_->options.keep_every,
                     sync = options.sync ? internal::Sync::kYes : internal::Sync::kNo] {
      remove_old(root, step, keep_last, keep_every, sync);
    };
  }
  return internal::save_async_then(run_->client,
                                   internal::join_path(run_->root, internal::step_name(step)),
                                   tensors, options, run_->options.async, std::move(when_complete));
}

StatusOr<std::optional<Info>> Checkpointer::latest() {
  TESSERA_RETURN_IF_ERROR(check_not_moved_from());
  const Client& client = run_->client;
  TESSERA_RETURN_IF_ERROR(tessera::internal::check_open(client, "Checkpointer::latest"));
  const internal::CallText text = {absl::StrCat("Checkpointer::latest ", quoted_whole(run_->root)),
                                   {}};
  TESSERA_ASSIGN_OR_RETURN(
      const std::string encoded,
      internal::agree_on_call(
          client, tessera::internal::rounds_of(client), text, absl::OkStatus(),
          [&]() -> Rounds::Value {
            TESSERA_ASSIGN_OR_RETURN(const std::vector<Entry> entries, list(run_->root));
            const auto found = std::find_if(entries.rbegin(), entries.rend(),
                                            [](const Entry& entry) { return entry.status.ok(); });
            if (found == entries.rend()) return std::string();
            TESSERA_ASSIGN_OR_RETURN(const internal::Source source,
                                     internal::open_source(found->path));
            return internal::encode_source(source);
          }));
  if (encoded.empty()) return std::optional<Info>();
  TESSERA_ASSIGN_OR_RETURN(const internal::Source source, internal::decode_source(encoded));
  return std::optional<Info>(*source.info);
}

bool Checkpointer::preempted(int64_t step) {
  return run_ != nullptr && run_->preemption->is_reached(step);
}

}  // namespace tessera::checkpoint
