// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/box_reader.h"

#include <algorithm>
#include <cstring>

#include "absl/types/span.h"
#include "files/npy_data.h"

namespace tessera::checkpoint::internal {
namespace {

constexpr int64_t kBufferBytes = int64_t{4} << 20;
// A run of so many bytes costs more to copy than a system call of its own.
constexpr int64_t kDirectBytes = int64_t{64} << 10;

}  // namespace

void BoxReader::want(const PieceIndex& index, DType dtype, const Box& box) {
  if (!blocks_.verifies() || box.is_empty()) return;
  for_each_read(index, dtype, box, /*join_gap_bytes=*/0, [&](const JoinedRead& read) {
    blocks_.want(read.file, read.offset, read.bytes);
    return absl::OkStatus();
  }).IgnoreError();
}

Status BoxReader::read(const PieceIndex& index, DType dtype, const Box& box, std::byte* out) {
  if (box.is_empty()) return absl::OkStatus();
  if (source_.npy.has_value()) {
    if (npy_ == nullptr) {
      TESSERA_ASSIGN_OR_RETURN(npy_, open_file(source_, 0));
    }
    return files::read_npy_box(*npy_, *source_.npy, box, out);
  }
  TESSERA_RETURN_IF_ERROR(
      for_each_read(index, dtype, box, join_gap_bytes_,
                    [&](const JoinedRead& read) { return read_joined(read, out); }));
  if (dtype == DType::kBool) {
    std::transform(out, out + box.num_elements(), out,
                   [](std::byte value) { return value == std::byte{0} ? value : std::byte{1}; });
  }
  return absl::OkStatus();
}

Status BoxReader::read_joined(const JoinedRead& read, std::byte* out) {
  const auto to = [out](const BoxRun& run) {
    return absl::MakeSpan(out + run.target_offset, static_cast<size_t>(run.bytes));
  };
  for (size_t first = 0; first < read.runs.size();) {
    const BoxRun& run = read.runs[first];
    size_t end = first + 1;
    int64_t bytes = run.bytes;
    // As many short runs as fit the buffer. A long run is read straight into its place.
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

}  // namespace tessera::checkpoint::internal
