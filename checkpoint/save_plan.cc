// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/save_plan.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"
#include "checkpoint/writers.h"
#include "files/json_reader.h"
#include "files/safetensors.h"

namespace tessera::checkpoint::internal {
namespace {

// {"w": {"saved_offsets": [4, 0]}}
std::string format_sharding(absl::Span<const SavedTensor> tensors,
                            absl::Span<const FilePart> parts) {
  std::string text = "{";
  for (const FilePart& part : parts) {
    if (text.size() > 1) text += ", ";
    files::append_json_text(tensors[part.tensor].name, &text);
    absl::StrAppend(&text, ": {\"saved_offsets\": [", absl::StrJoin(part.box.offsets, ", "), "]}");
  }
  return text + "}";
}

}  // namespace

StatusOr<DeviceFile> plan_file(absl::Span<const SavedTensor> tensors, int device,
                               int64_t min_split_bytes, absl::string_view save_id) {
  DeviceFile file;
  file.device = device;
  file.name = data_file_name(device, save_id);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const SavedTensor& tensor = tensors[i];
    const std::optional<int64_t> position = tensor.layout.mesh().position_of_device(device);
    if (!position.has_value()) continue;
    std::optional<Box> box = written_box(tensor.layout, tensor.shape, tensor.dtype, tensor.name,
                                         min_split_bytes, *position);
    if (box.has_value()) file.parts.push_back({static_cast<int>(i), *std::move(box), 0});
  }
  if (file.parts.empty()) return file;
  std::sort(file.parts.begin(), file.parts.end(), [&](const FilePart& a, const FilePart& b) {
    const SavedTensor& first = tensors[a.tensor];
    const SavedTensor& second = tensors[b.tensor];
    const int64_t sizes[] = {dtype_size(first.dtype), dtype_size(second.dtype)};
    return sizes[0] != sizes[1] ? sizes[0] > sizes[1] : first.name < second.name;
  });
  std::vector<files::SafetensorsEntry> entries;
  int64_t bytes = 0;
  for (FilePart& part : file.parts) {
    const SavedTensor& tensor = tensors[part.tensor];
    part.offset = bytes;
    bytes += num_bytes(part.box.sizes, tensor.dtype);
    entries.push_back({tensor.name, std::string(files::safetensors_name(tensor.dtype)),
                       part.box.sizes, part.offset, bytes});
  }
  TESSERA_ASSIGN_OR_RETURN(file.header,
                           files::format_safetensors_header(
                               entries,
                               {{"format", "pt"},
                                {"DCP_VERSION", "1.0"},
                                {std::string(kShardingKey), format_sharding(tensors, file.parts)},
                                {std::string(kSaveIdKey), std::string(save_id)}},
                               kDataAlignment));
  for (FilePart& part : file.parts) part.offset += static_cast<int64_t>(file.header.size());
  file.bytes = bytes + static_cast<int64_t>(file.header.size());
  return file;
}

Status add_files(absl::Span<const SavedTensor> tensors, int num_devices, int64_t min_split_bytes,
                 const std::map<int, std::vector<uint64_t>>& checksums, Info& info) {
  for (const SavedTensor& tensor : tensors) {
    TensorInfo entry;
    entry.name = tensor.name;
    entry.dtype = std::string(dtype_name(tensor.dtype));
    entry.shape = tensor.shape;
    entry.layout = tensor.layout.to_string_with_mesh();
    info.tensors.push_back(std::move(entry));
  }
  for (int device = 0; device < num_devices; ++device) {
    TESSERA_ASSIGN_OR_RETURN(DeviceFile file,
                             plan_file(tensors, device, min_split_bytes, info.save_id));
    if (file.parts.empty()) continue;
    const auto found = checksums.find(device);
    if (found == checksums.end() ||
        static_cast<int64_t>(found->second.size()) != num_blocks(file.bytes)) {
      return absl::InternalError(absl::StrCat("device ", device, " did not write what was planned ",
                                              "for it; this is a bug of Tessera"));
    }
    const int number = static_cast<int>(info.files.size());
    info.files.push_back({std::move(file.name), file.bytes, found->second});
    for (FilePart& part : file.parts) {
      info.tensors[part.tensor].pieces.push_back({std::move(part.box), number, part.offset});
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::checkpoint::internal
