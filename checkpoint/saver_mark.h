// SPDX-License-Identifier: Apache-2.0
//
// The mark of a save in its folder, .writing-<save id>: which process saves, so that what it leaves
// can be told from what it still writes. The process also holds a lock of the mark, as it may have
// another pid, or none, for a process in another container of its host. Safe to call from any
// thread. Internal to checkpoint/.
//
//   host host-a
//   boot 3f0c...          the kernel's id of this boot
//   pid 4711
//   start 123456          the start of the process, in ticks since the boot: pids are reused
#ifndef TESSERA_CHECKPOINT_SAVER_MARK_H_
#define TESSERA_CHECKPOINT_SAVER_MARK_H_

#include <string>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "job/environment/file_descriptor.h"

namespace tessera::checkpoint::internal {

// Marks a save of this process in the folder. The descriptor holds the lock, where the file system
// has locks. NotFound where another process, which found no saver, has removed the folder or the
// mark before it had its name: make them again.
StatusOr<FileDescriptor> write_mark(const std::string& folder, absl::string_view save_id);
// Removes the mark, if there is one.
void remove_mark(const std::string& folder, absl::string_view save_id);
// Whether the process of the mark may still run: false where it has ended, true where it is on
// another host, whose processes cannot be seen. False where there is no mark: then the save has
// ended, and its manifest is there if it is complete.
bool may_be_writing(const std::string& folder, absl::string_view save_id);

}  // namespace tessera::checkpoint::internal

#endif  // TESSERA_CHECKPOINT_SAVER_MARK_H_
