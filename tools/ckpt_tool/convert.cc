// SPDX-License-Identifier: Apache-2.0
#include "tools/ckpt_tool/convert.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/text.h"
#include "checkpoint/checksum.h"
#include "checkpoint/dtypes.h"
#include "checkpoint/info.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"
#include "checkpoint/saver_mark.h"
#include "checkpoint/source.h"
#include "files/new_file.h"
#include "files/random_access_file.h"
#include "job/environment/file_descriptor.h"
#include "tools/ckpt_tool/new_folder.h"
#include "tools/ckpt_tool/tensor_reader.h"

namespace tessera::ckpt_tool {
namespace {

using checkpoint::Info;
using checkpoint::TensorInfo;
using checkpoint::internal::join_path;
using checkpoint::internal::Source;
using files::bytes_of;
using files::NewFile;

constexpr char kIndexName[] = "model.safetensors.index.json";

std::string without_end_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// The path without links; empty where it does not exist.
std::string real_path(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> real(realpath(path.c_str(), nullptr), free);
  return real == nullptr ? "" : real.get();
}

Status check_target(const std::string& from, const std::string& to) {
  struct stat found = {};
  if (lstat(to.c_str(), &found) == 0) {
    return absl::AlreadyExistsError(absl::StrCat("target ", tessera::in_quotes(to),
                                                 " is there; nothing is written over, give another "
                                                 "name"));
  }
  const std::string source = real_path(from);
  const std::string folder = real_path(files::folder_of(to));
  if (folder == source || absl::StartsWith(folder, absl::StrCat(source, "/"))) {
    return absl::InvalidArgumentError(
        absl::StrCat("target ", tessera::in_quotes(to), " is inside of the source ",
                     tessera::in_quotes(from), ", which is not changed"));
  }
  return absl::OkStatus();
}

Status write_text(const std::string& path, const std::string& text) {
  TESSERA_ASSIGN_OR_RETURN(
      NewFile file,
      NewFile::create(path, absl::StrCat(path, checkpoint::internal::kPartialSuffix), 0));
  TESSERA_RETURN_IF_ERROR(file.write(0, bytes_of(text)));
  TESSERA_RETURN_IF_ERROR(file.sync());
  return file.commit(NewFile::Replace::kNo);
}

// Writes a file of tensors as `path`, which appears when it is whole.
Status write_file(const PlannedFile& planned, const Source& source, TensorReader& reader,
                  const std::string& path, const std::string& partial_path) {
  TESSERA_ASSIGN_OR_RETURN(NewFile file, NewFile::create(path, partial_path, planned.bytes));
  TESSERA_RETURN_IF_ERROR(file.write(0, bytes_of(planned.front)));
  for (const PlacedTensor& placed : planned.tensors) {
    const TensorInfo& tensor = source.info->tensors[static_cast<size_t>(placed.tensor)];
    TESSERA_ASSIGN_OR_RETURN(const DType dtype, checkpoint::internal::dtype_of(tensor));
    TESSERA_RETURN_IF_ERROR(reader.read(
        tensor, dtype, [&](int64_t offset, absl::Span<const std::byte> bytes) -> Status {
          TESSERA_RETURN_IF_ERROR(file.write(placed.offset + offset, bytes));
          file.start_writeback(placed.offset + offset, static_cast<int64_t>(bytes.size()));
          return absl::OkStatus();
        }));
  }
  TESSERA_RETURN_IF_ERROR(file.sync());
  return file.commit(NewFile::Replace::kNo);
}

// The checksums of the blocks of a file.
StatusOr<std::vector<uint64_t>> block_checksums(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const auto file, files::RandomAccessFile::open(path));
  std::vector<uint64_t> checksums;
  std::vector<std::byte> block(static_cast<size_t>(checkpoint::internal::kBlockBytes));
  for (int64_t offset = 0; offset < file->size(); offset += checkpoint::internal::kBlockBytes) {
    const auto bytes = absl::MakeSpan(block).subspan(
        0, static_cast<size_t>(std::min(checkpoint::internal::kBlockBytes, file->size() - offset)));
    TESSERA_RETURN_IF_ERROR(file->read(offset, bytes));
    checksums.push_back(checkpoint::internal::checksum64(bytes));
  }
  return checksums;
}

// The time of a checkpoint that has none: when its source was last written.
absl::Time time_of_file(const std::string& path) {
  struct stat found = {};
  return stat(path.c_str(), &found) == 0 ? absl::TimeFromTimespec(found.st_mtim)
                                         : absl::UnixEpoch();
}

Status write_manifest(Info manifest, const std::string& folder) {
  for (checkpoint::FileInfo& file : manifest.files) {
    TESSERA_ASSIGN_OR_RETURN(file.block_checksums, block_checksums(join_path(folder, file.name)));
  }
  TESSERA_RETURN_IF_ERROR(checkpoint::internal::check_info(manifest));
  return write_text(join_path(folder, checkpoint::internal::kManifestName),
                    checkpoint::internal::format_manifest(manifest));
}

Status write_folder(const Conversion& conversion, const Source& source, TensorReader& reader,
                    const std::string& to, const std::string& save_id) {
  TESSERA_ASSIGN_OR_RETURN(
      NewFolder folder,
      NewFolder::create(to, absl::StrCat(to, ".", save_id, checkpoint::internal::kPartialSuffix)));
  // The data files are called like those of a save. With a mark, a job that opens the root
  // meanwhile does not take them for what a dead saver left.
  FileDescriptor mark;
  if (conversion.manifest.has_value()) {
    TESSERA_ASSIGN_OR_RETURN(mark,
                             checkpoint::internal::write_mark(folder.partial_path(), save_id));
  }
  for (const PlannedFile& file : conversion.files) {
    const std::string path = join_path(folder.partial_path(), file.name);
    TESSERA_RETURN_IF_ERROR(write_file(file, source, reader, path,
                                       absl::StrCat(path, checkpoint::internal::kPartialSuffix)));
  }
  if (!conversion.index.empty()) {
    TESSERA_RETURN_IF_ERROR(
        write_text(join_path(folder.partial_path(), kIndexName), conversion.index));
  }
  if (conversion.manifest.has_value()) {
    TESSERA_RETURN_IF_ERROR(write_manifest(*conversion.manifest, folder.partial_path()));
  }
  checkpoint::internal::remove_mark(folder.partial_path(), save_id);
  return folder.commit();
}

}  // namespace

StatusOr<Converted> convert(const std::string& from, const std::string& to,
                            const ConvertOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const Source source, checkpoint::internal::open_source(from));
  const std::string save_id = checkpoint::internal::new_save_id();
  const std::string target = without_end_slashes(to);
  TESSERA_ASSIGN_OR_RETURN(Conversion conversion,
                           plan_conversion(*source.info, options, target, save_id));
  if (conversion.manifest.has_value() && !source.is_checkpoint) {
    conversion.manifest->time = time_of_file(from);
  }
  TESSERA_RETURN_IF_ERROR(check_target(from, target));
  TensorReader reader(source, options.buffer_bytes);
  Converted result = {conversion.num_tensors, conversion.tensor_bytes, {}};
  if (conversion.is_folder) {
    TESSERA_RETURN_IF_ERROR(write_folder(conversion, source, reader, target, save_id));
  } else {
    TESSERA_RETURN_IF_ERROR(
        write_file(conversion.files.front(), source, reader, target,
                   absl::StrCat(target, ".", save_id, checkpoint::internal::kPartialSuffix)));
  }
  TESSERA_RETURN_IF_ERROR(files::sync_folder(files::folder_of(target)));
  for (const PlannedFile& file : conversion.files) {
    result.files.push_back(conversion.is_folder ? join_path(target, file.name) : target);
  }
  if (!conversion.index.empty()) result.files.push_back(join_path(target, kIndexName));
  if (conversion.manifest.has_value()) {
    result.files.push_back(join_path(target, checkpoint::internal::kManifestName));
  }
  return result;
}

}  // namespace tessera::ckpt_tool
