// SPDX-License-Identifier: Apache-2.0
//
// RestorePlan: which bytes of which files each device reads to restore tensors, as a value.
//
//   w, f32 [8, 6], saved under [x, -] on {x=4}; wanted under [-, x] on {x=3}
//
//     files 0 to 3: two rows each     0 0 1 1 2 2     device 0 reads 8 of the 24 bytes of each row:
//                                     0 0 1 1 2 2     8 runs. With join_gap_bytes = 2048 the two
//                                     ...             runs of a file are one read of 32 bytes
//
// A plan depends on its arguments alone, so every client makes the same one. It is immutable, cheap
// to copy, and safe to read from any thread.
#ifndef TESSERA_CHECKPOINT_READ_PLAN_H_
#define TESSERA_CHECKPOINT_READ_PLAN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/public.h"
#include "base/status.h"
#include "checkpoint/info.h"
#include "checkpoint/options.h"
#include "layout/layout.h"
#include "relayout/topology.h"

namespace TESSERA_PUBLIC tessera {
namespace checkpoint {

// Bytes of a file that are read by one system call.
struct FileRead {
  int file;  // Index in Info::files.
  int64_t offset;
  int64_t bytes;

  friend bool operator==(const FileRead& a, const FileRead& b) = default;
};

// How one target is read.
struct TargetRead {
  int tensor;  // Index in Info::tensors.
  DType dtype;
  Layout target;
  // The layout in which the devices read: `target`, or with Reads::kOnce the layout from which
  // relayout() makes it. Where it is partial, only the devices with the first term read; the others
  // hold the identity.
  Layout read;
};

class RestorePlan {
 public:
  // In the order of the targets.
  absl::Span<const TargetRead> targets() const;
  // The system calls of the device at `position` of the mesh of each target, if it were alone on
  // its client: by target, then by file and offset. A box that two targets share is read once.
  // Empty where there is no such position. Takes memory for each read.
  std::vector<FileRead> reads(int64_t position) const;
  // The number of these reads and the sum of their bytes, without making the list.
  int64_t num_reads(int64_t position) const;
  int64_t bytes(int64_t position) const;
  // For a terminal: a line per target, with reads and bytes over all devices and of the busiest
  // one.
  std::string explain() const;
  // The info from which the plan was made.
  const Info& info() const;

  struct Rep;  // Internal.

 private:
  friend StatusOr<RestorePlan> plan_restore(std::shared_ptr<const Info> info,
                                            absl::Span<const Target> targets,
                                            const RestoreOptions& options,
                                            const Topology& topology);
  explicit RestorePlan(std::shared_ptr<const Rep> rep) : rep_(std::move(rep)) {}

  std::shared_ptr<const Rep> rep_;
};

// Plans the reads of a restore. Pure. The topology says which devices share a client and a host;
// the default is one host, on which each device is a client of its own.
//
// With Reads::kAuto a tensor is read once per host where kOnce reads fewer bytes, and one of these
// holds:
// - several clients of a host want the same bytes;
// - joining runs would more than double the bytes that are read.
//
// Errors:
// - the error that the layout of a target carries;
// - NotFound for a name that is not in the checkpoint, with the nearest name in it;
// - InvalidArgument for a layout of another rank than the tensor, and a negative join_gap_bytes;
// - Unimplemented for a dtype that Tessera does not have, and for Reads::kOnce where the hosts do
//   not differ by sub-axes of the mesh.
StatusOr<RestorePlan> plan_restore(const Info& info, absl::Span<const Target> targets,
                                   const RestoreOptions& options = {},
                                   const Topology& topology = Topology());
// As above, and does not copy the info.
StatusOr<RestorePlan> plan_restore(std::shared_ptr<const Info> info,
                                   absl::Span<const Target> targets, const RestoreOptions& options,
                                   const Topology& topology);

}  // namespace checkpoint
}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_READ_PLAN_H_
