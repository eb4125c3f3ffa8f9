// SPDX-License-Identifier: Apache-2.0
//
// Options of saving and restoring, and Target, what restore() is asked for. Plain values.
#ifndef TESSERA_CHECKPOINT_OPTIONS_H_
#define TESSERA_CHECKPOINT_OPTIONS_H_

#include <csignal>
#include <cstdint>
#include <map>
#include <string>

#include "base/public.h"
#include "base/status.h"
#include "layout/layout.h"

namespace TESSERA_PUBLIC tessera {
namespace checkpoint {

struct SaveOptions {
  // The program's own: a learning rate, a seed, the position in a data set. UTF-8.
  std::map<std::string, std::string> metadata = {};
  int64_t step = 0;
  // False: AlreadyExists where a manifest exists. True: the old checkpoint stays readable until the
  // new one is complete.
  bool overwrite = false;
  // Sync files and directories before the manifest appears: the checkpoint then survives a power
  // cut. Without it, it survives that the program is killed.
  bool sync = true;
  // A larger box that several devices hold is cut between them.
  int64_t min_split_bytes = int64_t{1} << 16;
  // The rate at which a client writes; 0: no limit.
  int64_t max_bytes_per_second = 0;
};

struct AsyncOptions {
  // Including the save that is being written. A further call waits until the oldest is complete.
  int max_pending = 2;
  // Per client: tensors that pending saves keep alive or have copied. 0: no limit.
  int64_t max_held_bytes = 0;
  enum class Staging {
    kHold,  // Keeps the tensors, which are immutable. Copies nothing.
    kCopy,  // Copies them to host memory before the call returns.
  } staging = Staging::kHold;
};

// A tensor to restore. Shape and dtype are the saved ones.
struct Target {
  std::string name;
  LayoutArg layout;
};

struct RestoreOptions {
  // Which checksums are compared.
  enum class Verify {
    kNone,
    kRead,  // The checksums of blocks that are read whole.
    kAll,   // The checksums of all blocks of the files that are read from.
  } verify = Verify::kRead;
  // Which client reads a byte.
  enum class Reads {
    kAuto,    // kOnce for tensors where it reads less (see plan_restore()), else kDirect.
    kDirect,  // Each client reads the bytes of its own boxes.
    kOnce,    // One client of each host reads a byte; relayout() moves it to the others.
  } reads = Reads::kAuto;
  // Runs of a file with a gap of at most so many bytes are read as one. A system call costs as much
  // as reading about 2 KiB.
  int64_t join_gap_bytes = 2048;
};

// Options of the checkpoints of a run.
struct RunOptions {
  // How many checkpoints of the highest steps stay; 0: all. The others are removed after a save is
  // complete.
  int keep_last = 0;
  // Also keep checkpoints whose step is a multiple of this; 0: no others.
  int64_t keep_every = 0;
  SaveOptions save = {};
  AsyncOptions async = {};
  // The signal that Checkpointer::preempted() reports. All Checkpointers of a process have the same
  // one.
  int signal = SIGTERM;
};

}  // namespace checkpoint
}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_OPTIONS_H_
