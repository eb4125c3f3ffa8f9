// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/block_reader.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/text.h"
#include "checkpoint/manifest.h"
#include "files/safetensors.h"

namespace tessera::checkpoint::internal {
namespace {

// A chunk is compared while it is in a near cache.
constexpr size_t kChunkBytes = size_t{1} << 20;
constexpr size_t kMostCachedBlocks = 8;

}  // namespace

Status BlockReader::check_header(int file, const files::SafetensorsHeader& header,
                                 const std::string& path) {
  const Info& info = *source_.info;
  if (pieces_.empty()) {
    pieces_.resize(info.files.size());
    for (size_t t = 0; t < info.tensors.size(); ++t) {
      const std::vector<Piece>& pieces = info.tensors[t].pieces;
      for (size_t p = 0; p < pieces.size(); ++p) {
        pieces_[pieces[p].file].push_back({static_cast<int>(t), static_cast<int>(p)});
      }
    }
  }
  const std::string context = absl::StrCat("file ", quoted_whole(path));
  const auto save_id = header.metadata.find(std::string(kSaveIdKey));
  const std::string found = save_id == header.metadata.end() ? "none" : save_id->second;
  if (found != info.save_id) {
    return absl::DataLossError(absl::StrCat(context, " is of another save: its id is ", found,
                                            ", and that of the manifest is ", info.save_id));
  }
  std::map<int64_t, const files::SafetensorsEntry*> by_begin;
  for (const files::SafetensorsEntry& entry : header.entries) {
    if (entry.begin < entry.end) by_begin[entry.begin] = &entry;
  }
  for (const PieceOfFile& each : pieces_[file]) {
    const TensorInfo& tensor = info.tensors[each.tensor];
    const Piece& piece = tensor.pieces[each.piece];
    if (piece.box.is_empty()) continue;
    const std::string expected = absl::StrCat(tessera::in_quotes(tensor.name), " ", tensor.dtype,
                                              " ", shape_to_string(piece.box.sizes));
    const auto entry = by_begin.find(piece.offset);
    if (entry == by_begin.end()) {
      return absl::DataLossError(absl::StrCat(context, " has no tensor at byte ", piece.offset,
                                              ", and the manifest has ", expected, " there"));
    }
    const files::SafetensorsEntry& actual = *entry->second;
    const StatusOr<DType> dtype = files::dtype_of_safetensors(actual.dtype);
    const std::string actual_text =
        absl::StrCat(tessera::in_quotes(actual.name), " ",
                     dtype.ok() ? dtype_name(*dtype) : absl::string_view(actual.dtype), " ",
                     shape_to_string(actual.shape));
    if (actual_text == expected) continue;
    return absl::DataLossError(absl::StrCat(context, " has ", actual_text, " at byte ",
                                            piece.offset, ", and the manifest has ", expected,
                                            " there"));
  }
  return absl::OkStatus();
}

void BlockReader::want(int file, int64_t offset, int64_t bytes) {
  while (bytes > 0) {
    const int64_t block = offset / kBlockBytes;
    const int64_t part = std::min(bytes, (block + 1) * kBlockBytes - offset);
    wanted_[{file, block}] += part;
    offset += part;
    bytes -= part;
  }
}

StatusOr<const BlockReader::OpenFile*> BlockReader::open(int file, Header header) {
  OpenFile& opened = files_[file];
  if (opened.file == nullptr) {
    if (open_.size() == most_open_files_) {
      files_[open_.front()].file.reset();
      open_.pop_front();
    }
    TESSERA_ASSIGN_OR_RETURN(opened.file, open_file(source_, file));
    open_.push_back(file);
  }
  if (header == Header::kIgnore || !source_.is_checkpoint || opened.header_bytes > 0) {
    return &opened;
  }
  const StatusOr<files::SafetensorsHeader> found = files::read_safetensors_header(*opened.file);
  if (absl::IsInvalidArgument(found.status())) {
    return absl::DataLossError(absl::StrCat("a header is damaged: ", found.status().message()));
  }
  TESSERA_RETURN_IF_ERROR(found.status());
  TESSERA_RETURN_IF_ERROR(check_header(file, *found, opened.file->path()));
  opened.header_bytes = found->data_begin;
  return &opened;
}

int64_t BlockReader::block_bytes(int file, int64_t block) const {
  return std::min(kBlockBytes, source_.info->files[file].bytes - block * kBlockBytes);
}

bool BlockReader::is_wanted_whole(const OpenFile& opened, int file, int64_t block) const {
  const auto wanted = wanted_.find({file, block});
  const int64_t header =
      std::clamp<int64_t>(opened.header_bytes - block * kBlockBytes, 0, kBlockBytes);
  return wanted != wanted_.end() && wanted->second + header >= block_bytes(file, block);
}

Status BlockReader::compare(int file, int64_t block, uint64_t found) const {
  const FileInfo& info = source_.info->files[file];
  const uint64_t expected = info.block_checksums[block];
  if (found == expected) return absl::OkStatus();
  const int64_t begin = block * kBlockBytes;
  const int64_t end = begin + block_bytes(file, block);
  return absl::DataLossError(absl::StrCat(
      "file ", quoted_whole(source_.path_of(file)), " is damaged in block ", block, ", bytes ",
      begin, " to ", end, ", which holds ", tensors_in(*source_.info, file, begin, end),
      ": its checksum is ", absl::Hex(found, absl::kZeroPad16), ", and the manifest says ",
      absl::Hex(expected, absl::kZeroPad16)));
}

Status BlockReader::read_block(const OpenFile& opened, int file, int64_t block,
                               absl::Span<std::byte> out) {
  checksum_.reset();
  int64_t offset = block * kBlockBytes;
  while (!out.empty()) {
    const absl::Span<std::byte> chunk = out.subspan(0, kChunkBytes);
    TESSERA_RETURN_IF_ERROR(opened.file->read(offset, chunk));
    checksum_.add(chunk);
    offset += static_cast<int64_t>(chunk.size());
    out.remove_prefix(chunk.size());
  }
  return compare(file, block, checksum_.value());
}

StatusOr<const BlockReader::Cached*> BlockReader::cached_block(const OpenFile& opened, int file,
                                                               int64_t block) {
  const BlockKey key(file, block);
  const auto known = std::find_if(cache_.begin(), cache_.end(),
                                  [&](const Cached& cached) { return cached.key == key; });
  if (known != cache_.end()) {
    cache_.splice(cache_.begin(), cache_, known);
    return &cache_.front();
  }
  if (cache_.size() == kMostCachedBlocks) cache_.pop_back();
  Cached cached = {key, std::vector<std::byte>(static_cast<size_t>(block_bytes(file, block)))};
  TESSERA_RETURN_IF_ERROR(read_block(opened, file, block, absl::MakeSpan(cached.bytes)));
  cache_.push_front(std::move(cached));
  return &cache_.front();
}

Status BlockReader::read(int file, int64_t offset, absl::Span<std::byte> out) {
  TESSERA_ASSIGN_OR_RETURN(const OpenFile* const opened, open(file, Header::kCheck));
  if (!verifies_) return opened->file->read(offset, out);
  while (!out.empty()) {
    const int64_t block = offset / kBlockBytes;
    const int64_t begin = block * kBlockBytes;
    const int64_t bytes = block_bytes(file, block);
    const auto part = static_cast<size_t>(
        std::min<int64_t>(static_cast<int64_t>(out.size()), begin + bytes - offset));
    const absl::Span<std::byte> to = out.subspan(0, part);
    if (static_cast<int64_t>(part) == bytes) {
      TESSERA_RETURN_IF_ERROR(read_block(*opened, file, block, to));
    } else if (is_wanted_whole(*opened, file, block)) {
      TESSERA_ASSIGN_OR_RETURN(const Cached* const cached, cached_block(*opened, file, block));
      std::memcpy(to.data(), cached->bytes.data() + (offset - begin), part);
    } else {
      TESSERA_RETURN_IF_ERROR(opened->file->read(offset, to));
    }
    offset += static_cast<int64_t>(part);
    out.remove_prefix(part);
  }
  return absl::OkStatus();
}

Status BlockReader::verify_block(int file, int64_t block) {
  TESSERA_ASSIGN_OR_RETURN(const OpenFile* const opened, open(file, Header::kIgnore));
  std::vector<std::byte> bytes(static_cast<size_t>(block_bytes(file, block)));
  return read_block(*opened, file, block, absl::MakeSpan(bytes));
}

Status BlockReader::verify_header(int file) { return open(file, Header::kCheck).status(); }

}  // namespace tessera::checkpoint::internal
