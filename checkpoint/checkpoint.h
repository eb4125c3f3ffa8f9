// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints: the values of a job on disk, which a job of any other size can read.
//
//   save(client, "run/step-0000000100", {{"w", w.value()}, {"b", b.value()}}, {.step = 100});
//   ...
//   StatusOr<std::string> path = latest(client, "run");
//   restore_into(client, *path, absl::MakeSpan(variables));
//
//   run/step-0000000100/
//     data-00000-7c9e6679a1b2c3d4.safetensors     what device 0 wrote: whole boxes
//     data-00001-7c9e6679a1b2c3d4.safetensors
//     manifest.json                               names, shapes, boxes, checksums; written last
//
// A checkpoint is a folder of plain safetensors files, one for each device that writes, and a
// manifest. It exists when its manifest does. Any layout, mesh and number of clients can read what
// another wrote: boxes count, and a saved layout is only a comment.
//
// Functions with a Client are collective over all clients of the job: all make the same calls with
// equal arguments, in the order of their other collective calls, and all get one Status. An error
// that not all clients found names the client that did. A client that is lost is Unavailable,
// naming it. The other functions are local, and need no job.
//
// Thread-safe, as client.h says of operations of several clients.
//
// torch: distributed.checkpoint.save, load. orbax: CheckpointManager. TF: tf.train.Checkpoint.
#ifndef TESSERA_CHECKPOINT_CHECKPOINT_H_
#define TESSERA_CHECKPOINT_CHECKPOINT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/public.h"
#include "base/status.h"
#include "checkpoint/info.h"
#include "checkpoint/options.h"
#include "checkpoint/read_plan.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "files/array_files.h"
#include "ops/variable.h"

namespace TESSERA_PUBLIC tessera {
namespace checkpoint {

using tessera::NamedTensor;
using tessera::read_npy;
using tessera::write_npy;
using tessera::write_safetensors;

// Saves the values; a partial tensor is reduced first. Makes the folder, and missing ones above it.
//
// - Killed at any instant it leaves the earlier checkpoints as they were. With options.sync the
//   same holds for a power cut.
// - A box that several devices hold is written once, cut between them where it is large.
// - No tensor data moves between clients, except for partial tensors.
//
// Refused before a byte is written:
//   InvalidArgument     a name that is no legal one or is there twice; clients that disagree, two
//                       of them named
//   AlreadyExists       a complete checkpoint is there, and options.overwrite is false
//   ResourceExhausted   no room on the disk
//   PermissionDenied    and other errors of the system, with the path
// The error of a tensor, and of the disk later on, ends the save as well. After an error no file of
// this save is left, except where a client was lost: then the next Checkpointer::open() removes
// them, and an error does not say that the checkpoint is not there.
Status save(const Client& client, absl::string_view path, absl::Span<const NamedTensor> tensors,
            const SaveOptions& options = {});

// The named tensors, in the order of the targets. Reads only what the layouts need, straight into
// the memory of the shards.
//
// `path` is one of these:
//   a checkpoint
//   a .safetensors file
//   a folder of them, with or without model.safetensors.index.json. Pieces that torch wrote are
//     placed by their DCP_SHARDING_INFO
//   a .npy file, whose tensor is called like the file without ".npy"
//
// All or nothing, on all clients:
//   NotFound           nothing is at `path`, or a target is not in it: with the nearest name
//   InvalidArgument    a layout of another rank; a file or manifest that is malformed
//   DataLoss           a file that is missing, cut or changed: names file, block and tensors
//   Unimplemented      a tensor of a dtype that Tessera lacks
// A checkpoint that is overwritten while it is read is read again, once. NotFound where it is
// removed meanwhile.
StatusOr<std::vector<DTensor>> restore(const Client& client, absl::string_view path,
                                       absl::Span<const Target> targets,
                                       const RestoreOptions& options = {});

// As restore(), to the variables by their names and in their layouts. InvalidArgument where a shape
// or dtype differs from the saved one, naming both: nothing is cast. No variable changes on an
// error.
Status restore_into(const Client& client, absl::string_view path, absl::Span<Variable> variables,
                    const RestoreOptions& options = {});

// The Info from which restore() would read. Checks a manifest against itself, and the sizes of its
// files; reads no tensor data. Local. NotFound where there is no manifest.json, nor a file of
// another kind.
StatusOr<Info> read_info(absl::string_view path);

// A folder in which a checkpoint is, was or will be.
struct Entry {
  std::string path;
  int64_t step = 0;
  // OK: complete. FailedPrecondition: there is no manifest yet. Else the error of read_info():
  // DataLoss for a damaged manifest.
  Status status;
};
// The checkpoints under `root`, by step, whatever their folders are called. Without a manifest the
// step is that of the name. Folders of other files are left out. Local. NotFound where there is no
// root.
StatusOr<std::vector<Entry>> list(absl::string_view root);

// The path of the complete checkpoint of the highest step, as client 0 sees the root. NotFound
// where there is none.
StatusOr<std::string> latest(const Client& client, absl::string_view root);

// Reads every byte and compares it with the checksums. DataLoss names file, block, offset and the
// tensors in the block. A file of another tool has no checksums: its header is checked. Local.
// `num_threads`: 0 for as many as the process has cores, 8 at most.
Status verify(absl::string_view path, int num_threads = 0);

}  // namespace checkpoint
}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_CHECKPOINT_H_
