// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/foreign_folder.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"
#include "checkpoint/tiling.h"
#include "files/json_reader.h"
#include "files/random_access_file.h"
#include "files/safetensors.h"

namespace tessera::checkpoint::internal {
namespace {

constexpr absl::string_view kIndexName = "model.safetensors.index.json";
constexpr int64_t kMaxIndexBytes = int64_t{1} << 30;

// The dtype of an entry as TensorInfo::dtype names it.
std::string dtype_of_entry(const files::SafetensorsEntry& entry) {
  const StatusOr<DType> own = files::dtype_of_safetensors(entry.dtype);
  return own.ok() ? std::string(dtype_name(*own)) : absl::AsciiStrToLower(entry.dtype);
}

// The tensors of several files, by name.
class Collector {
 public:
  // Adds the tensors of a file.
  Status add(const std::string& path, const std::string& name) {
    TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<const files::RandomAccessFile> file,
                             files::RandomAccessFile::open(path));
    TESSERA_ASSIGN_OR_RETURN(const files::SafetensorsHeader header,
                             files::read_safetensors_header(*file));
    std::map<std::string, std::vector<int64_t>> offsets;
    const auto sharding = header.metadata.find(std::string(kShardingKey));
    if (sharding != header.metadata.end()) {
      StatusOr<std::map<std::string, std::vector<int64_t>>> read = read_sharding(sharding->second);
      if (!read.ok()) {
        return with_context(read.status(),
                            absl::StrCat("file ", quoted_whole(path), ": ", kShardingKey));
      }
      offsets = *std::move(read);
    }
    const int number = static_cast<int>(info_.files.size());
    for (const files::SafetensorsEntry& entry : header.entries) {
      const auto cut = offsets.find(entry.name);
      TESSERA_RETURN_IF_ERROR(with_context(
          add_piece(entry, number, cut == offsets.end() ? nullptr : &cut->second),
          absl::StrCat("file ", quoted_whole(path), ": tensor ", in_quotes(entry.name))));
    }
    info_.files.push_back({name, file->size(), {}});
    for (const auto& [key, value] : header.metadata) {
      if (key != kShardingKey) info_.metadata.emplace(key, value);
    }
    return absl::OkStatus();
  }

  // Whether a file that was added has the tensor.
  bool has(const std::string& tensor) const { return index_.count(tensor) > 0; }

  StatusOr<Info> finish(const std::string& path) {
    for (const TensorInfo& tensor : info_.tensors) {
      TESSERA_RETURN_IF_ERROR(
          with_context(check_tiling(tensor.name, tensor.shape, tensor.pieces), quoted_whole(path)));
    }
    info_.path = path;
    return std::move(info_);
  }

 private:
  // {"w": {"saved_offsets": [0, 2]}}
  static StatusOr<std::map<std::string, std::vector<int64_t>>> read_sharding(
      absl::string_view text) {
    TESSERA_ASSIGN_OR_RETURN(const files::JsonDocument document, files::JsonDocument::parse(text));
    TESSERA_ASSIGN_OR_RETURN(const files::JsonMembers members, document.root().to_members());
    std::map<std::string, std::vector<int64_t>> result;
    for (const files::JsonMember member : members) {
      TESSERA_ASSIGN_OR_RETURN(const files::JsonValue list, member.value.member("saved_offsets"));
      TESSERA_ASSIGN_OR_RETURN(const files::JsonElements elements, list.to_elements());
      std::vector<int64_t>& offsets = result[std::string(member.name)];
      for (const files::JsonValue element : elements) {
        TESSERA_ASSIGN_OR_RETURN(const int64_t offset, element.to_integer());
        offsets.push_back(offset);
      }
    }
    return result;
  }

  Status add_piece(const files::SafetensorsEntry& entry, int file,
                   const std::vector<int64_t>* offsets) {
    Piece piece;
    piece.file = file;
    piece.offset = entry.begin;
    piece.box.sizes = entry.shape;
    piece.box.offsets = offsets != nullptr ? *offsets : std::vector<int64_t>(entry.shape.size(), 0);
    if (piece.box.offsets.size() != entry.shape.size()) {
      return absl::InvalidArgumentError(absl::StrCat("it has rank ", entry.shape.size(), ", and ",
                                                     kShardingKey, " has ",
                                                     piece.box.offsets.size(), " offsets"));
    }
    Shape end = entry.shape;
    for (size_t dim = 0; dim < end.size(); ++dim) {
      if (piece.box.offsets[dim] < 0 ||
          __builtin_add_overflow(end[dim], piece.box.offsets[dim], &end[dim])) {
        return absl::InvalidArgumentError(absl::StrCat("the offset ", piece.box.offsets[dim],
                                                       " in ", kShardingKey, " is out of range"));
      }
    }
    const auto [known, is_new] = index_.emplace(entry.name, info_.tensors.size());
    if (is_new) {
      TensorInfo tensor;
      tensor.name = entry.name;
      tensor.dtype = dtype_of_entry(entry);
      tensor.shape = end;
      info_.tensors.push_back(std::move(tensor));
      is_cut_.push_back(offsets != nullptr);
    }
    TensorInfo& tensor = info_.tensors[known->second];
    if (!is_new) {
      TESSERA_RETURN_IF_ERROR(check_same(tensor, entry, offsets != nullptr, known->second));
    }
    for (size_t dim = 0; dim < end.size(); ++dim) {
      tensor.shape[dim] = std::max(tensor.shape[dim], end[dim]);
    }
    if (!piece.box.is_empty()) tensor.pieces.push_back(std::move(piece));
    // Only the piece is known to fit 64 bits.
    return validate_shape(tensor.shape);
  }

  Status check_same(const TensorInfo& tensor, const files::SafetensorsEntry& entry, bool is_cut,
                    size_t number) const {
    if (!is_cut || !is_cut_[number]) {
      return absl::InvalidArgumentError(
          absl::StrCat("another file has it too, and ", kShardingKey,
                       " does not say which part of it each one has"));
    }
    const std::string dtype = dtype_of_entry(entry);
    if (dtype != tensor.dtype || entry.shape.size() != tensor.shape.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("it is ", dtype, " of rank ", entry.shape.size(), " here, and ",
                       tensor.dtype, " of rank ", tensor.shape.size(), " in another file"));
    }
    return absl::OkStatus();
  }

  Info info_;
  std::map<std::string, size_t> index_;  // in info_.tensors
  std::vector<bool> is_cut_;             // by tensor, whether its first piece had offsets
};

// The file of each tensor.
StatusOr<std::map<std::string, std::string>> read_index(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<const files::RandomAccessFile> file,
                           files::RandomAccessFile::open(path));
  if (file->size() > kMaxIndexBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("it has ", file->size(), " bytes; at most ", kMaxIndexBytes, " are read"));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string text, file->read_front(file->size()));
  TESSERA_ASSIGN_OR_RETURN(const files::JsonDocument document, files::JsonDocument::parse(text));
  TESSERA_ASSIGN_OR_RETURN(const files::JsonValue map, document.root().member("weight_map"));
  TESSERA_ASSIGN_OR_RETURN(const files::JsonMembers members, map.to_members());
  std::map<std::string, std::string> result;
  for (const files::JsonMember member : members) {
    TESSERA_ASSIGN_OR_RETURN(const absl::string_view name, member.value.to_text());
    if (!is_file_name(name)) {
      return absl::InvalidArgumentError(absl::StrCat("weight_map names file ", in_quotes(name),
                                                     " for tensor ", in_quotes(member.name),
                                                     "; a name holds no / and is not . or .."));
    }
    result[std::string(member.name)] = std::string(name);
  }
  return result;
}

}  // namespace

StatusOr<Info> read_foreign_file(const std::string& path) {
  Collector collector;
  TESSERA_RETURN_IF_ERROR(collector.add(path, last_part(path)));
  return collector.finish(path);
}

StatusOr<Info> read_foreign_folder(const std::string& folder, absl::Span<const std::string> names) {
  Collector collector;
  if (std::find(names.begin(), names.end(), kIndexName) == names.end()) {
    for (const std::string& name : names) {
      if (!absl::EndsWith(name, kSafetensorsSuffix)) continue;
      TESSERA_RETURN_IF_ERROR(collector.add(join_path(folder, name), name));
    }
    return collector.finish(folder);
  }
  const std::string path = join_path(folder, kIndexName);
  const StatusOr<std::map<std::string, std::string>> index = read_index(path);
  if (!index.ok()) {
    return with_context(index.status(), absl::StrCat("file ", quoted_whole(path)));
  }
  std::set<std::string> files;
  for (const auto& [tensor, file] : *index) files.insert(file);
  for (const std::string& file : files) {
    TESSERA_RETURN_IF_ERROR(collector.add(join_path(folder, file), file));
  }
  for (const auto& [tensor, file] : *index) {
    if (collector.has(tensor)) continue;
    return absl::InvalidArgumentError(absl::StrCat("file ", quoted_whole(path), " names tensor ",
                                                   in_quotes(tensor), " in file ", in_quotes(file),
                                                   ", which does not have it"));
  }
  return collector.finish(folder);
}

}  // namespace tessera::checkpoint::internal
