// SPDX-License-Identifier: Apache-2.0
#include "tools/ckpt_tool/tensor_reader.h"

#include <algorithm>

#include "checkpoint/manifest.h"
#include "checkpoint/options.h"
#include "files/box_runs.h"

namespace tessera::ckpt_tool {
namespace {

using checkpoint::TensorInfo;
using checkpoint::internal::JoinedRead;
using checkpoint::internal::kBlockBytes;
using checkpoint::internal::PieceIndex;

// Shorter runs of a Fortran array are read together with the bytes between them.
constexpr int64_t kRunBytes = int64_t{64} << 10;

// Makes dim `dim` of a box as long as a box of `most` elements allows.
void grow(const Shape& shape, size_t dim, int64_t most, Shape* sizes) {
  const int64_t others = num_elements(*sizes) / (*sizes)[dim];
  (*sizes)[dim] = std::clamp<int64_t>(most / others, 1, shape[dim]);
}

// The sizes of boxes of at most `most` elements, which are consecutive in a row-major tensor.
Shape row_major_box(const Shape& shape, int64_t most) {
  Shape sizes(shape.size(), 1);
  for (size_t dim = shape.size(); dim-- > 0;) grow(shape, dim, most, &sizes);
  return sizes;
}

// The sizes of boxes of at most `most` elements, with runs of kRunBytes in the first dim if it has
// as many, and long in the last dim.
Shape fortran_box(const Shape& shape, int64_t most, int64_t element_bytes) {
  Shape sizes(shape.size(), 1);
  if (shape.empty()) return sizes;
  grow(shape, 0, std::min(most, kRunBytes / element_bytes), &sizes);
  for (size_t dim = shape.size(); dim-- > 0;) grow(shape, dim, most, &sizes);
  return sizes;
}

// Calls fn() for boxes of these sizes, or less at an end, that tile the shape.
Status for_each_box(const Shape& shape, const Shape& sizes,
                    absl::FunctionRef<Status(const Box&)> fn) {
  Box box = {Shape(shape.size(), 0), sizes};
  while (true) {
    TESSERA_RETURN_IF_ERROR(fn(box));
    size_t dim = shape.size();
    while (dim > 0) {  // to the next box, the last dim first
      --dim;
      int64_t& offset = box.offsets[dim];
      offset += sizes[dim];
      const bool is_in = offset < shape[dim];
      if (!is_in) offset = 0;
      box.sizes[dim] = std::min(sizes[dim], shape[dim] - offset);
      if (is_in) break;
      if (dim == 0) return absl::OkStatus();
    }
    if (shape.empty()) return absl::OkStatus();
  }
}

}  // namespace

TensorReader::TensorReader(const checkpoint::internal::Source& source, int64_t buffer_bytes)
    : source_(source),
      buffer_bytes_(buffer_bytes),
      // This class compares all blocks: a BlockReader skips blocks that are not wanted whole.
      blocks_(source, checkpoint::RestoreOptions::Verify::kNone),
      boxes_(source, blocks_, checkpoint::RestoreOptions().join_gap_bytes) {
  for (const checkpoint::FileInfo& file : source.info->files) {
    verified_.emplace_back(file.block_checksums.size(), false);
  }
}

Status TensorReader::read(const TensorInfo& tensor, DType dtype, Write write) {
  if (num_elements(tensor.shape) == 0) return absl::OkStatus();
  const int64_t element_bytes = dtype_size(dtype);
  const int64_t most = buffer_bytes_ / element_bytes;
  const bool is_fortran = source_.npy.has_value() && source_.npy->is_fortran;
  const Shape sizes = is_fortran ? fortran_box(tensor.shape, most, element_bytes)
                                 : row_major_box(tensor.shape, most);
  buffer_.resize(std::max(buffer_.size(), static_cast<size_t>(num_bytes(sizes, dtype))));
  const PieceIndex index(&tensor);
  const Box whole = whole_box(tensor.shape);
  return for_each_box(tensor.shape, sizes, [&](const Box& box) -> Status {
    if (source_.is_checkpoint) TESSERA_RETURN_IF_ERROR(verify_box(index, dtype, box));
    TESSERA_RETURN_IF_ERROR(boxes_.read(index, dtype, box, buffer_.data()));
    Status status;
    files::for_each_run(
        box, box, whole, element_bytes, [&](int64_t from, int64_t to, int64_t size) {
          if (status.ok()) {
            status =
                write(to, absl::MakeConstSpan(buffer_.data() + from, static_cast<size_t>(size)));
          }
        });
    return status;
  });
}

Status TensorReader::verify_box(const PieceIndex& index, DType dtype, const Box& box) {
  return checkpoint::internal::for_each_read(
      index, dtype, box, /*join_gap_bytes=*/0,
      [&](const JoinedRead& read) { return verify_range(read.file, read.offset, read.bytes); });
}

Status TensorReader::verify_range(int file, int64_t offset, int64_t bytes) {
  std::vector<bool>& verified = verified_[static_cast<size_t>(file)];
  for (int64_t block = offset / kBlockBytes; block * kBlockBytes < offset + bytes; ++block) {
    if (verified[static_cast<size_t>(block)]) continue;
    TESSERA_RETURN_IF_ERROR(blocks_.verify_block(file, block));
    verified[static_cast<size_t>(block)] = true;
  }
  return absl::OkStatus();
}

}  // namespace tessera::ckpt_tool
