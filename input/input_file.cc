// SPDX-License-Identifier: Apache-2.0
#include "input/input_file.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/stable_hash.h"
#include "base/text.h"

namespace tessera::input {

StatusOr<std::shared_ptr<const InputFile>> InputFile::open(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<const files::RandomAccessFile> file,
                           files::RandomAccessFile::open(path));
  return std::shared_ptr<const InputFile>(new InputFile(std::move(file)));
}

Status InputFile::error(absl::string_view message) const {
  return absl::InvalidArgumentError(absl::StrCat("file ", in_quotes(path()), ": ", message));
}

Status InputFile::read(int64_t offset, absl::Span<std::byte> out,
                       absl::FunctionRef<std::string()> name) const {
  if (read_block(offset, out)) return absl::OkStatus();
  const StatusOr<size_t> done = file_->read_some(offset, out);
  if (!done.ok()) {
    return with_context(done.status(),
                        absl::StrCat("file ", in_quotes(path()), ": cannot read ", name()));
  }
  if (*done == out.size()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "file ", in_quotes(path()), ": ", name(), " is bytes ", offset, " to ",
      offset + static_cast<int64_t>(out.size()), ", and the file ends at ",
      offset + static_cast<int64_t>(*done), "; it had ", size(), " bytes when it was opened"));
}

bool InputFile::read_block(int64_t offset, absl::Span<std::byte> out) const {
  constexpr int64_t kPageBytes = 1 << 12;
  constexpr int64_t kMaxBlockBytes = 1 << 16;
  const auto count = static_cast<int64_t>(out.size());
  if (count > kMaxBlockBytes / 4) return false;  // a system call is a small part of the time
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t distance = std::abs(offset - std::exchange(next_offset_, offset + count));
  const bool is_near = distance <= kPageBytes;
  run_bytes_ = is_near ? run_bytes_ + count : count;
  const auto has_bytes = [&] {
    return offset >= block_offset_ &&
           offset + count <= block_offset_ + static_cast<int64_t>(block_.size());
  };
  if (!has_bytes()) {
    if (!is_near) return false;
    // Begins a few records earlier, which other threads may be about to read.
    block_offset_ = std::max<int64_t>(0, offset - std::min(4 * count, kPageBytes));
    const int64_t after = std::clamp(run_bytes_, kPageBytes, kMaxBlockBytes);
    block_.resize(static_cast<size_t>(offset - block_offset_ + after));
    const StatusOr<size_t> got = file_->read_some(block_offset_, absl::MakeSpan(block_));
    block_.resize(got.value_or(0));
    if (!has_bytes()) return false;
  }
  std::copy_n(block_.begin() + (offset - block_offset_), out.size(), out.begin());
  return true;
}

FileParts::FileParts(absl::Span<const int64_t> counts) : starts_(1, 0) {
  for (const int64_t count : counts) starts_.push_back(starts_.back() + count);
}

FileParts::Place FileParts::find(int64_t index) const {
  // The last file that begins at or before the index: files without elements begin there too.
  const auto after = std::upper_bound(starts_.begin(), starts_.end(), index);
  const size_t file = static_cast<size_t>(after - starts_.begin()) - 1;
  return {file, index - starts_[file]};
}

StatusOr<std::vector<std::shared_ptr<const InputFile>>> open_files(
    absl::Span<const std::string> paths) {
  if (paths.empty()) {
    return absl::InvalidArgumentError("the list of files is empty; give at least one");
  }
  std::vector<std::shared_ptr<const InputFile>> files;
  for (const std::string& path : paths) {
    TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<const InputFile> file, InputFile::open(path));
    files.push_back(std::move(file));
  }
  return files;
}

uint64_t hash_of_files(absl::string_view kind,
                       absl::Span<const std::shared_ptr<const InputFile>> files) {
  uint64_t hash = stable_hash(kind);
  for (const auto& file : files) {
    const absl::string_view path = file->path();
    const size_t slash = path.rfind('/');
    hash = stable_hash(slash == absl::string_view::npos ? path : path.substr(slash + 1), hash);
    const int64_t size = file->size();
    hash = stable_hash(absl::MakeConstSpan(&size, 1), hash);
  }
  return hash;
}

}  // namespace tessera::input
