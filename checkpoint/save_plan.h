// SPDX-License-Identifier: Apache-2.0
//
// The contents of each device's file in a save, before a byte is written.
//
//   data-00000-7c9e6679a1b2c3d4.safetensors
//   | 8 bytes, header, blanks to 4096 | u: f64 | b: f32 | w: f32 |      wider dtypes first, then by
//   name
//
// A device's file has one box at most of a tensor, under the name of the tensor. Its metadata lets
// torch read the folder: "format", "DCP_VERSION", and the offsets of the boxes in
// DCP_SHARDING_INFO; "tessera.save_id" ties it to its manifest. Pure: all clients can tell what
// every device writes. Safe to call from any thread. Internal to checkpoint/.
#ifndef TESSERA_CHECKPOINT_SAVE_PLAN_H_
#define TESSERA_CHECKPOINT_SAVE_PLAN_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "checkpoint/info.h"
#include "layout/layout.h"

namespace tessera::checkpoint::internal {

// A tensor to save, without its value. The layout is not partial.
struct SavedTensor {
  std::string name;
  DType dtype;
  Shape shape;
  Layout layout;
};

struct FilePart {
  int tensor;  // index
  Box box;
  int64_t offset;  // in the file
};
struct DeviceFile {
  int device = 0;
  std::string name;
  std::string header;           // with the 8 bytes before it
  std::vector<FilePart> parts;  // ascending by offset, without gaps
  int64_t bytes = 0;
};

// The file of a device. Without parts where the device writes nothing.
StatusOr<DeviceFile> plan_file(absl::Span<const SavedTensor> tensors, int device,
                               int64_t min_split_bytes, absl::string_view save_id);

// Adds tensors and files to an Info: the files of `num_devices` devices, with the checksums that
// their writers have found. Internal where the checksums of a file are missing.
Status add_files(absl::Span<const SavedTensor> tensors, int num_devices, int64_t min_split_bytes,
                 const std::map<int, std::vector<uint64_t>>& checksums, Info& info);

}  // namespace tessera::checkpoint::internal

#endif  // TESSERA_CHECKPOINT_SAVE_PLAN_H_
