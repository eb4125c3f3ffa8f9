// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/data_writer.h"

#include <algorithm>

#include "checkpoint/manifest.h"
#include "files/box_runs.h"

namespace tessera::checkpoint::internal {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;

}  // namespace

DataWriter::DataWriter(files::NewFile& file, AfterChunk after_chunk)
    : file_(file), after_chunk_(std::move(after_chunk)) {
  buffer_.reserve(kChunkBytes);
}

Status DataWriter::append(absl::Span<const std::byte> bytes) {
  while (!bytes.empty()) {
    // A whole chunk needs no copy.
    if (buffer_.empty() && bytes.size() >= kChunkBytes) {
      TESSERA_RETURN_IF_ERROR(write_chunk(bytes.subspan(0, kChunkBytes)));
      bytes.remove_prefix(kChunkBytes);
      continue;
    }
    const size_t count = std::min(bytes.size(), kChunkBytes - buffer_.size());
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.begin() + count);
    bytes.remove_prefix(count);
    if (buffer_.size() == kChunkBytes || bytes.size() >= kChunkBytes) {
      TESSERA_RETURN_IF_ERROR(flush());
    }
  }
  return absl::OkStatus();
}

Status DataWriter::append_box(const std::byte* data, const Box& outer, const Box& box,
                              int64_t element_bytes) {
  Status status;
  files::for_each_run(outer, box, box, element_bytes, [&](int64_t offset, int64_t, int64_t bytes) {
    if (status.ok()) {
      status = append(absl::MakeConstSpan(data + offset, static_cast<size_t>(bytes)));
    }
  });
  return status;
}

StatusOr<std::vector<uint64_t>> DataWriter::finish() {
  TESSERA_RETURN_IF_ERROR(flush());
  if (offset_ % kBlockBytes != 0) checksums_.push_back(checksum_.value());
  return std::move(checksums_);
}

Status DataWriter::flush() {
  if (buffer_.empty()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(write_chunk(buffer_));
  buffer_.clear();
  return absl::OkStatus();
}

Status DataWriter::write_chunk(absl::Span<const std::byte> bytes) {
  add_to_checksums(bytes);
  TESSERA_RETURN_IF_ERROR(file_.write(offset_, bytes));
  if (previous_ > 0) file_.start_writeback(offset_ - previous_, previous_);
  previous_ = static_cast<int64_t>(bytes.size());
  offset_ += previous_;
  return after_chunk_(previous_);
}

void DataWriter::add_to_checksums(absl::Span<const std::byte> bytes) {
  int64_t offset = offset_;
  while (!bytes.empty()) {
    const int64_t left = kBlockBytes - offset % kBlockBytes;
    const absl::Span<const std::byte> part = bytes.subspan(0, static_cast<size_t>(left));
    checksum_.add(part);
    offset += static_cast<int64_t>(part.size());
    bytes.remove_prefix(part.size());
    if (offset % kBlockBytes != 0) continue;
    checksums_.push_back(checksum_.value());
    checksum_.reset();
  }
}

}  // namespace tessera::checkpoint::internal
