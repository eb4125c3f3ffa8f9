// SPDX-License-Identifier: Apache-2.0
#include "tools/ckpt_tool/made_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "checkpoint/checksum.h"
#include "checkpoint/dtypes.h"
#include "checkpoint/info.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"
#include "checkpoint/source.h"
#include "files/safetensors.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/folder.h"
#include "tests/support/matchers.h"

namespace tessera::ckpt_tool {
namespace {

using checkpoint::Info;
using checkpoint::internal::join_path;
using files::SafetensorsEntry;
using testing::IsOk;
using testing::read_bytes;
using testing::write_bytes;

// Calls fn(place in the box, place in the shape) for each element of the box, in order.
template <class Fn>
void for_each_element(const Shape& shape, const Box& box, Fn fn) {
  const int64_t count = box.num_elements();
  for (int64_t i = 0; i < count; ++i) {
    int64_t place = 0;
    int64_t rest = i;
    int64_t stride = 1;
    for (size_t dim = shape.size(); dim-- > 0;) {
      place += (box.offsets[dim] + rest % box.sizes[dim]) * stride;
      rest /= box.sizes[dim];
      stride *= shape[dim];
    }
    fn(i, place);
  }
}

std::string bytes_of_box(const MadeTensor& tensor, const Box& box) {
  const std::string all = bytes_of(tensor);
  const int64_t size = dtype_size(tensor.dtype);
  std::string bytes;
  for_each_element(tensor.shape, box, [&](int64_t, int64_t place) {
    bytes += all.substr(static_cast<size_t>(place * size), static_cast<size_t>(size));
  });
  return bytes;
}

std::string key_of(absl::string_view name, absl::string_view dtype, const Shape& shape) {
  return absl::StrCat(name, " ", dtype, " ", shape_to_string(shape));
}

// A safetensors file as text, and its entries with places in the file.
struct MadeFile {
  std::string bytes;
  std::vector<SafetensorsEntry> entries;
};

MadeFile make_file(const std::vector<std::pair<const MadeTensor*, Box>>& parts,
                   const std::map<std::string, std::string>& metadata, int64_t alignment) {
  MadeFile file;
  std::string data;
  for (const auto& [tensor, box] : parts) {
    const auto begin = static_cast<int64_t>(data.size());
    data += bytes_of_box(*tensor, box);
    file.entries.push_back({tensor->name, std::string(files::safetensors_name(tensor->dtype)),
                            box.sizes, begin, static_cast<int64_t>(data.size())});
  }
  const StatusOr<std::string> front =
      files::format_safetensors_header(file.entries, metadata, alignment);
  EXPECT_THAT(front, IsOk());
  file.bytes = front.value_or("") + data;
  for (SafetensorsEntry& entry : file.entries) {
    entry.begin += static_cast<int64_t>(front->size());
    entry.end += static_cast<int64_t>(front->size());
  }
  return file;
}

std::vector<uint64_t> checksums_of(absl::string_view bytes) {
  std::vector<uint64_t> checksums;
  const auto block = static_cast<size_t>(checkpoint::internal::kBlockBytes);
  for (size_t at = 0; at < bytes.size(); at += block) {
    checksums.push_back(checkpoint::internal::checksum64(bytes.substr(at, block)));
  }
  return checksums;
}

}  // namespace

std::string bytes_of(const MadeTensor& tensor) {
  const int64_t count = num_bytes(tensor.shape, tensor.dtype);
  size_t seed = 0;
  for (const char c : tensor.name) seed = seed * 31 + static_cast<unsigned char>(c);
  std::string bytes(static_cast<size_t>(count), '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] =
        static_cast<char>(tensor.dtype == DType::kBool ? i % 2 : (167 * i + seed % 1009) % 251);
  }
  return bytes;
}

void write_checkpoint(const std::string& folder, const MadeCheckpoint& checkpoint,
                      const std::vector<MadeTensor>& tensors) {
  make_folder(folder);
  Info info;
  info.save_id = checkpoint.save_id;
  info.step = checkpoint.step;
  info.time = absl::FromUnixSeconds(1'795'352'700);  // 2026-11-22T13:05:00Z
  info.metadata = checkpoint.metadata;
  std::vector<std::vector<std::pair<const MadeTensor*, Box>>> parts;  // by file
  for (const MadeTensor& tensor : tensors) {
    std::vector<Box> boxes = tensor.boxes;
    if (boxes.empty() && num_elements(tensor.shape) > 0) boxes.push_back(whole_box(tensor.shape));
    parts.resize(std::max(parts.size(), boxes.size()));
    for (size_t i = 0; i < boxes.size(); ++i) parts[i].emplace_back(&tensor, boxes[i]);
    info.tensors.push_back(
        {tensor.name, std::string(dtype_name(tensor.dtype)), tensor.shape, tensor.layout, {}});
  }
  info.num_clients = std::max(1, static_cast<int>(parts.size()));
  for (size_t i = 0; i < parts.size(); ++i) {
    const int number = static_cast<int>(i);
    const MadeFile file =
        make_file(parts[i], {{"format", "pt"}, {"tessera.save_id", info.save_id}}, 4096);
    const std::string name = checkpoint::internal::data_file_name(number, info.save_id);
    write_bytes(join_path(folder, name), file.bytes);
    info.files.push_back({name, static_cast<int64_t>(file.bytes.size()), checksums_of(file.bytes)});
    for (size_t k = 0; k < parts[i].size(); ++k) {
      const auto tensor = static_cast<size_t>(parts[i][k].first - tensors.data());
      info.tensors[tensor].pieces.push_back({parts[i][k].second, number, file.entries[k].begin});
    }
  }
  EXPECT_THAT(checkpoint::internal::check_info(info), IsOk());
  write_bytes(join_path(folder, checkpoint::internal::kManifestName),
              checkpoint::internal::format_manifest(info));
}

void write_safetensors_file(const std::string& path, const std::vector<MadeTensor>& tensors,
                            const std::map<std::string, std::string>& metadata) {
  std::vector<std::pair<const MadeTensor*, Box>> parts;
  for (const MadeTensor& tensor : tensors) parts.emplace_back(&tensor, whole_box(tensor.shape));
  write_bytes(path, make_file(parts, metadata, 8).bytes);
}

void make_folder(const std::string& path) { EXPECT_EQ(mkdir(path.c_str(), 0777), 0) << path; }

bool exists(const std::string& path) {
  struct stat found = {};
  return lstat(path.c_str(), &found) == 0;
}

std::map<std::string, std::string> tensors_at(const std::string& path) {
  const StatusOr<checkpoint::internal::Source> source = checkpoint::internal::open_source(path);
  EXPECT_THAT(source, IsOk());
  std::map<std::string, std::string> result;
  if (!source.ok()) return result;
  for (const checkpoint::TensorInfo& tensor : source->info->tensors) {
    const StatusOr<DType> dtype = checkpoint::internal::dtype_of(tensor);
    EXPECT_THAT(dtype, IsOk());
    const auto size = static_cast<size_t>(dtype_size(*dtype));
    std::string bytes(static_cast<size_t>(num_bytes(tensor.shape, *dtype)), '?');
    for (const checkpoint::Piece& piece : tensor.pieces) {
      const std::string file = read_bytes(source->path_of(piece.file));
      for_each_element(tensor.shape, piece.box, [&](int64_t i, int64_t place) {
        bytes.replace(static_cast<size_t>(place) * size, size, file,
                      static_cast<size_t>(piece.offset) + static_cast<size_t>(i) * size, size);
      });
    }
    result[key_of(tensor.name, tensor.dtype, tensor.shape)] = bytes;
  }
  return result;
}

std::map<std::string, std::string> tensors_of(const std::vector<MadeTensor>& tensors) {
  std::map<std::string, std::string> result;
  for (const MadeTensor& tensor : tensors) {
    result[key_of(tensor.name, dtype_name(tensor.dtype), tensor.shape)] = bytes_of(tensor);
  }
  return result;
}

}  // namespace tessera::ckpt_tool
