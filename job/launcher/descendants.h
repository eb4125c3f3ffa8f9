// SPDX-License-Identifier: Apache-2.0
//
// Descendants: the processes that the clients of a launcher leave behind, also processes with a
// session and a process group of their own.
//
//   adopt_descendants();              a process whose parent has ended is a child of this one now
//   ... clients run and end ...
//   kill_orphans({coordinator});      no descendant is left but that process
//
// Needs /proc; without it no orphan is found. For a process that starts no other threads.
#ifndef TESSERA_JOB_LAUNCHER_DESCENDANTS_H_
#define TESSERA_JOB_LAUNCHER_DESCENDANTS_H_

#include <sys/types.h>

#include "absl/types/span.h"

namespace tessera {

// Makes this process the parent of descendants that lose their parents from now on (prctl(2),
// PR_SET_CHILD_SUBREAPER).
void adopt_descendants();

// Reaps the children that have ended, except `known`, which have owners in this process.
void reap_orphans(absl::Span<const pid_t> known);
// Kills and reaps all children except `known`, then the children that these leave behind, and so
// on.
void kill_orphans(absl::Span<const pid_t> known);

}  // namespace tessera

#endif  // TESSERA_JOB_LAUNCHER_DESCENDANTS_H_
