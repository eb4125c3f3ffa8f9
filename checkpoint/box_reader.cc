// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/box_reader.h"

#include <algorithm>
#include <cstring>

#include "absl/types/span.h"

namespace tessera::checkpoint::internal {
namespace {

constexpr int64_t kBufferBytes = int64_t{4} << 20;
// A run of so many bytes costs more to copy than a system call of its own.
constexpr int64_t kDirectBytes = int64_t{64} << 10;

Box reversed(const Box& box) {
  return {{box.offsets.rbegin(), box.offsets.rend()}, {box.sizes.rbegin(), box.sizes.rend()}};
}

void swap_bytes(std::byte* data, int64_t count, int64_t element_bytes) {
  for (int64_t i = 0; i < count; ++i) {
    std::reverse(data + i * element_bytes, data + (i + 1) * element_bytes);
  }
}

// Copies an array whose first dim is the innermost to one whose last dim is.
void transpose(const Shape& sizes, int64_t element_bytes, const std::byte* from, std::byte* to) {
  const size_t rank = sizes.size();
  std::vector<int64_t> steps(rank);  // of `from`, in bytes
  int64_t step = element_bytes;
  for (size_t dim = 0; dim < rank; ++dim) {
    steps[dim] = step;
    step *= sizes[dim];
  }
  std::vector<int64_t> index(rank, 0);
  int64_t offset = 0;
  const int64_t count = num_elements(sizes);
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * element_bytes, from + offset, static_cast<size_t>(element_bytes));
    for (size_t dim = rank; dim-- > 0;) {
      offset += steps[dim];
      if (++index[dim] < sizes[dim]) break;
      offset -= steps[dim] * sizes[dim];
      index[dim] = 0;
    }
  }
}

}  // namespace

void BoxReader::want(const PieceIndex& index, DType dtype, const Box& box) {
  // Only blocks of a checkpoint have checksums.
  if (!source_.is_checkpoint || box.is_empty()) return;
  for_each_read(index, dtype, box, /*join_gap_bytes=*/0, [&](const JoinedRead& read) {
    blocks_.want(read.file, read.offset, read.bytes);
    return absl::OkStatus();
  }).IgnoreError();
}

Status BoxReader::read(const PieceIndex& index, DType dtype, const Box& box, std::byte* out) {
  if (box.is_empty()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(source_.is_fortran ? read_fortran(index.tensor(), dtype, box, out)
                                             : read_row_major(index, dtype, box, out));
  const int64_t count = box.num_elements();
  if (source_.is_big_endian) swap_bytes(out, count, dtype_size(dtype));
  if (dtype == DType::kBool) {
    std::transform(out, out + count, out,
                   [](std::byte value) { return value == std::byte{0} ? value : std::byte{1}; });
  }
  return absl::OkStatus();
}

Status BoxReader::read_row_major(const PieceIndex& index, DType dtype, const Box& box,
                                 std::byte* out) {
  return for_each_read(index, dtype, box, join_gap_bytes_,
                       [&](const JoinedRead& read) { return read_joined(read, out); });
}

Status BoxReader::read_joined(const JoinedRead& read, std::byte* out) {
  const auto to = [out](const BoxRun& run) {
    return absl::MakeSpan(out + run.target_offset, static_cast<size_t>(run.bytes));
  };
  for (size_t first = 0; first < read.runs.size();) {
    const BoxRun& run = read.runs[first];
    size_t end = first + 1;
    int64_t bytes = run.bytes;
    // As many runs as fit the buffer, up to one that is read by itself.
    while (end < read.runs.size() && run.bytes < kDirectBytes &&
           read.runs[end].bytes < kDirectBytes) {
      const int64_t extent = read.runs[end].offset + read.runs[end].bytes - run.offset;
      if (extent > kBufferBytes) break;
      bytes = extent;
      ++end;
    }
    if (end == first + 1) {
      TESSERA_RETURN_IF_ERROR(blocks_.read(read.file, run.offset, to(run)));
    } else {
      buffer_.resize(std::max(buffer_.size(), static_cast<size_t>(bytes)));
      const absl::Span<std::byte> all(buffer_.data(), static_cast<size_t>(bytes));
      TESSERA_RETURN_IF_ERROR(blocks_.read(read.file, run.offset, all));
      for (size_t i = first; i < end; ++i) {
        const BoxRun& part = read.runs[i];
        std::memcpy(to(part).data(), all.data() + (part.offset - run.offset),
                    static_cast<size_t>(part.bytes));
      }
    }
    first = end;
  }
  return absl::OkStatus();
}

Status BoxReader::read_fortran(const TensorInfo& tensor, DType dtype, const Box& box,
                               std::byte* out) {
  TensorInfo stored = tensor;
  std::reverse(stored.shape.begin(), stored.shape.end());
  for (Piece& piece : stored.pieces) piece.box = reversed(piece.box);
  std::vector<std::byte> columns(static_cast<size_t>(num_bytes(box.sizes, dtype)));
  const PieceIndex index(&stored);
  TESSERA_RETURN_IF_ERROR(read_row_major(index, dtype, reversed(box), columns.data()));
  transpose(box.sizes, dtype_size(dtype), columns.data(), out);
  return absl::OkStatus();
}

}  // namespace tessera::checkpoint::internal
