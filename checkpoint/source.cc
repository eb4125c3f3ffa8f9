// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/source.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/text.h"
#include "checkpoint/dtypes.h"
#include "checkpoint/foreign_folder.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"
#include "files/new_file.h"
#include "files/npy.h"
#include "files/safetensors.h"

namespace tessera::checkpoint::internal {
namespace {

constexpr absl::string_view kNpySuffix = ".npy";
constexpr char kMissingUrl[] = "tessera/missing-file";
constexpr size_t kMostNames = 3;

// Bits of a source as text.
constexpr int64_t kCheckpoint = 1;
constexpr int64_t kNpy = 2;
constexpr int64_t kFortran = 4;
constexpr int64_t kBigEndian = 8;

StatusOr<Source> open_checkpoint(const std::string& folder) {
  const std::string path = join_path(folder, kManifestName);
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<const files::RandomAccessFile> file,
                           files::RandomAccessFile::open(path));
  const std::string context = absl::StrCat("manifest ", quoted_whole(path));
  TESSERA_RETURN_IF_ERROR(with_context(check_manifest_size(file->size()), context));
  TESSERA_ASSIGN_OR_RETURN(const std::string text, file->read_front(file->size()));
  StatusOr<Info> info = parse_manifest(text);
  if (!info.ok()) return with_context(info.status(), context);
  info->path = folder;
  Source source;
  source.info = std::make_shared<const Info>(*std::move(info));
  source.folder = folder;
  source.is_checkpoint = true;
  return source;
}

StatusOr<Source> open_npy(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<const files::RandomAccessFile> file,
                           files::RandomAccessFile::open(path));
  TESSERA_ASSIGN_OR_RETURN(const files::NpyHeader header, files::read_npy_header(*file));
  const std::string name = last_part(path);
  TensorInfo tensor;
  tensor.name = std::string(absl::StripSuffix(name, kNpySuffix));
  tensor.dtype = std::string(dtype_name(header.dtype));
  tensor.shape = header.shape;
  if (num_elements(header.shape) > 0) {
    tensor.pieces.push_back({whole_box(header.shape), 0, header.data_offset});
  }
  auto info = std::make_shared<Info>();
  info->path = path;
  info->tensors.push_back(std::move(tensor));
  info->files.push_back({name, file->size(), {}});
  Source source;
  source.info = std::move(info);
  source.folder = files::folder_of(path);
  source.npy = header;
  return source;
}

StatusOr<Source> open_folder(const std::string& folder) {
  struct stat found = {};
  if (stat(join_path(folder, kManifestName).c_str(), &found) == 0) return open_checkpoint(folder);
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, names_in(folder));
  const bool has_files = std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return absl::EndsWith(name, kSafetensorsSuffix);
  });
  const bool begun = is_begun(names);
  if (begun || !has_files) {
    return absl::NotFoundError(
        absl::StrCat("folder ", quoted_whole(folder), " has no manifest.json",
                     begun ? ": a save to it was begun and has not become complete"
                           : ", and no .safetensors file"));
  }
  Source result;
  TESSERA_ASSIGN_OR_RETURN(Info info, read_foreign_folder(folder, names));
  result.info = std::make_shared<const Info>(std::move(info));
  result.folder = folder;
  return result;
}

// Values in the order of their members: integers as 8 bytes, texts and lists with their size first.
class Encoder {
 public:
  void add(int64_t value) { text_.append(reinterpret_cast<const char*>(&value), sizeof(value)); }
  void add(absl::string_view text) {
    add(static_cast<int64_t>(text.size()));
    text_.append(text.data(), text.size());
  }
  void add(absl::Span<const int64_t> values) {
    add(static_cast<int64_t>(values.size()));
    for (const int64_t value : values) add(value);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

// Reads what Encoder wrote. After a malformed text is_ok() is false, and values are 0 or empty.
class Decoder {
 public:
  explicit Decoder(absl::string_view text) : text_(text) {}

  int64_t integer() {
    int64_t value = 0;
    if (text_.size() < sizeof(value)) return fail();
    std::memcpy(&value, text_.data(), sizeof(value));
    text_.remove_prefix(sizeof(value));
    return value;
  }
  // The size of a list, whose elements take a byte or more.
  size_t size() {
    const int64_t value = integer();
    if (value < 0 || static_cast<uint64_t>(value) > text_.size()) return fail();
    return static_cast<size_t>(value);
  }
  std::string text() {
    const size_t count = size();
    const std::string result(text_.substr(0, count));
    text_.remove_prefix(count);
    return result;
  }
  std::vector<int64_t> integers() {
    std::vector<int64_t> values(size());
    for (int64_t& value : values) value = integer();
    return values;
  }
  bool is_ok() const { return is_ok_; }

 private:
  int fail() {
    is_ok_ = false;
    text_ = {};
    return 0;
  }

  absl::string_view text_;
  bool is_ok_ = true;
};

}  // namespace

std::string Source::path_of(int file) const { return join_path(folder, info->files[file].name); }

StatusOr<Source> open_source(const std::string& path) {
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0) {
    return files::file_error(errno, "cannot open checkpoint", path);
  }
  if (S_ISDIR(found.st_mode)) return open_folder(path);
  if (absl::EndsWith(path, kNpySuffix)) return open_npy(path);
  Source source;
  TESSERA_ASSIGN_OR_RETURN(Info info, read_foreign_file(path));
  source.info = std::make_shared<const Info>(std::move(info));
  source.folder = files::folder_of(path);
  return source;
}

bool is_missing_file(const Status& status) { return status.GetPayload(kMissingUrl).has_value(); }

StatusOr<std::shared_ptr<const files::RandomAccessFile>> open_file(const Source& source, int file) {
  const std::string path = source.path_of(file);
  auto opened = files::RandomAccessFile::open(
      path, source.is_checkpoint ? files::Links::kRefuse : files::Links::kFollow);
  const FileInfo& expected = source.info->files[file];
  if (absl::IsNotFound(opened.status())) {
    Status missing =
        absl::DataLossError(absl::StrCat("file ", quoted_whole(path), " is missing; it holds ",
                                         tensors_in(*source.info, file, 0, expected.bytes)));
    missing.SetPayload(kMissingUrl, absl::Cord());
    return missing;
  }
  TESSERA_RETURN_IF_ERROR(opened.status());
  if ((*opened)->size() != expected.bytes) {
    return absl::DataLossError(absl::StrCat(
        "file ", quoted_whole(path), " has ", (*opened)->size(), " bytes, ",
        source.is_checkpoint ? "and the manifest says " : "and had before ", expected.bytes));
  }
  return opened;
}

std::string tensors_in(const Info& info, int file, int64_t begin, int64_t end) {
  std::vector<std::string> names;
  for (const TensorInfo& tensor : info.tensors) {
    const int64_t bits = dtype_bits(tensor.dtype).value_or(0);
    const bool is_in =
        std::any_of(tensor.pieces.begin(), tensor.pieces.end(), [&](const Piece& piece) {
          const int64_t bytes = piece.box.num_elements() * bits / 8;
          return piece.file == file && piece.offset < end && piece.offset + bytes > begin;
        });
    if (is_in) names.push_back(in_quotes(tensor.name));
  }
  if (names.empty()) return "no tensor";
  if (names.size() <= kMostNames) return absl::StrJoin(names, ", ");
  return absl::StrCat(absl::StrJoin(names.begin(), names.begin() + kMostNames, ", "), " and ",
                      names.size() - kMostNames, " more");
}

std::string encode_source(const Source& source) {
  const Info& info = *source.info;
  Encoder out;
  out.add(source.folder);
  const bool is_npy = source.npy.has_value();
  out.add((source.is_checkpoint ? kCheckpoint : 0) + (is_npy ? kNpy : 0) +
          (is_npy && source.npy->is_fortran ? kFortran : 0) +
          (is_npy && source.npy->is_big_endian ? kBigEndian : 0));
  out.add(is_npy ? source.npy->data_offset : 0);
  out.add(is_npy ? static_cast<int64_t>(source.npy->dtype) : 0);
  out.add(info.path);
  out.add(info.save_id);
  out.add(info.step);
  out.add(absl::ToUnixMicros(info.time));
  out.add(info.num_clients);
  out.add(static_cast<int64_t>(info.metadata.size()));
  for (const auto& [key, value] : info.metadata) {
    out.add(key);
    out.add(value);
  }
  out.add(static_cast<int64_t>(info.tensors.size()));
  for (const TensorInfo& tensor : info.tensors) {
    out.add(tensor.name);
    out.add(tensor.dtype);
    out.add(tensor.shape);
    out.add(tensor.layout);
    out.add(static_cast<int64_t>(tensor.pieces.size()));
    for (const Piece& piece : tensor.pieces) {
      out.add(piece.file);
      out.add(piece.offset);
      out.add(piece.box.offsets);
      out.add(piece.box.sizes);
    }
  }
  out.add(static_cast<int64_t>(info.files.size()));
  for (const FileInfo& file : info.files) {
    out.add(file.name);
    out.add(file.bytes);
    out.add(static_cast<int64_t>(file.block_checksums.size()));
    for (const uint64_t checksum : file.block_checksums) out.add(static_cast<int64_t>(checksum));
  }
  return out.take();
}

StatusOr<Source> decode_source(absl::string_view text) {
  Decoder in(text);
  Source source;
  auto info = std::make_shared<Info>();
  source.folder = in.text();
  const int64_t flags = in.integer();
  source.is_checkpoint = (flags & kCheckpoint) != 0;
  const int64_t data_offset = in.integer();
  const auto dtype = static_cast<DType>(in.integer());
  info->path = in.text();
  info->save_id = in.text();
  info->step = in.integer();
  info->time = absl::FromUnixMicros(in.integer());
  info->num_clients = static_cast<int>(in.integer());
  for (size_t count = in.size(); count > 0; --count) {
    std::string key = in.text();
    info->metadata[std::move(key)] = in.text();
  }
  info->tensors.resize(in.size());
  for (TensorInfo& tensor : info->tensors) {
    tensor.name = in.text();
    tensor.dtype = in.text();
    tensor.shape = in.integers();
    tensor.layout = in.text();
    tensor.pieces.resize(in.size());
    for (Piece& piece : tensor.pieces) {
      piece.file = static_cast<int>(in.integer());
      piece.offset = in.integer();
      piece.box.offsets = in.integers();
      piece.box.sizes = in.integers();
    }
  }
  info->files.resize(in.size());
  for (FileInfo& file : info->files) {
    file.name = in.text();
    file.bytes = in.integer();
    file.block_checksums.resize(in.size());
    for (uint64_t& checksum : file.block_checksums) checksum = static_cast<uint64_t>(in.integer());
  }
  if (!in.is_ok()) {
    return absl::InternalError(
        "the description of a checkpoint is malformed; this is a bug of "
        "Tessera, please report it with the checkpoint's path");
  }
  if ((flags & kNpy) != 0 && info->tensors.size() == 1) {
    source.npy = files::NpyHeader{dtype, info->tensors[0].shape, (flags & kFortran) != 0,
                                  (flags & kBigEndian) != 0, data_offset};
  }
  source.info = std::move(info);
  return source;
}

}  // namespace tessera::checkpoint::internal
