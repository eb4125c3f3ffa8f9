// SPDX-License-Identifier: Apache-2.0
//
// Checkpointer: the checkpoints of a run, in root/step-<10 digits>.
//
//   StatusOr<Checkpointer> run = Checkpointer::open(client, "run", {.keep_last = 3});
//   StatusOr<std::optional<Info>> last = run->latest();
//   if (last->has_value()) ... restore(client, (*last)->path, targets) ...
//   for (int64_t step = first; step < num_steps; ++step) {
//     ...
//     const bool leave = run->preempted(step);
//     if (leave || step % 100 == 0) {
//       StatusOr<Pending> pending = run->save(step, tensors);
//       if (leave) return pending->await();
//     }
//   }
//
// Invariants:
//   1. a checkpoint is removed only after a later save is complete; the keep_last checkpoints with
//      the highest steps stay, and the checkpoint of the last save;
//   2. complete checkpoints are never removed by open(), nor the files of a saver that lives.
//
// open(), save(), latest() and preempted() are collective (checkpoint.h). A Checkpointer is moved,
// not copied, and used by one thread at a time.
//
// orbax: CheckpointManager. TF: CheckpointManager, PreemptionCheckpointHandler.
#ifndef TESSERA_CHECKPOINT_CHECKPOINTER_H_
#define TESSERA_CHECKPOINT_CHECKPOINTER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/types/span.h"
#include "base/public.h"
#include "base/status.h"
#include "checkpoint/info.h"
#include "checkpoint/options.h"
#include "checkpoint/pending.h"
#include "dtensor/client.h"
#include "files/array_files.h"

namespace TESSERA_PUBLIC tessera {
namespace checkpoint {

class Checkpointer {
 public:
  // Makes the root. Removes what savers that no longer run have left: files that no manifest
  // names, and folders without a manifest. A saver on another host counts as running.
  static StatusOr<Checkpointer> open(const Client& client, std::string root,
                                     const RunOptions& options = {});
  Checkpointer(Checkpointer&&) noexcept;
  Checkpointer& operator=(Checkpointer&&) noexcept;
  ~Checkpointer();

  // save_async() to root/step-<step>. Older checkpoints go when this one is complete.
  StatusOr<Pending> save(int64_t step, absl::Span<const NamedTensor> tensors,
                         std::map<std::string, std::string> metadata = {});
  // The complete checkpoint of the highest step; nothing where there is none yet.
  StatusOr<std::optional<Info>> latest();

  // True on every client at one and the same step, after any client has had RunOptions::signal:
  // save, await, and leave. The steps of the calls ascend, by any amounts that are equal on all
  // clients. Local and under 1 us until a client has had it; then one round with the others. A
  // handler that the program has set before open() is called too.
  bool preempted(int64_t step);

 private:
  struct Run;
  // In a forked child the threads of a run are missing, and it stays.
  struct EndRun {
    void operator()(Run* run) const;
  };
  using OwnedRun = std::unique_ptr<Run, EndRun>;
  explicit Checkpointer(OwnedRun run);
  Status check_not_moved_from() const;

  OwnedRun run_;
};

}  // namespace checkpoint
}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_CHECKPOINTER_H_
