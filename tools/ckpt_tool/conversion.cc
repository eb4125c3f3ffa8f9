// SPDX-License-Identifier: Apache-2.0
#include "tools/ckpt_tool/conversion.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/text.h"
#include "checkpoint/dtypes.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"
#include "files/npy.h"
#include "files/safetensors.h"
#include "tools/ckpt_tool/output.h"
#include "tools/ckpt_tool/tensor_names.h"

namespace tessera::ckpt_tool {
namespace {

using checkpoint::Info;
using checkpoint::TensorInfo;
using checkpoint::internal::kSaveIdKey;
using checkpoint::internal::kShardingKey;
using Metadata = std::map<std::string, std::string>;

// Entries of the metadata of files that describe the file, not what is in it.
constexpr absl::string_view kFormatKey = "format";
constexpr absl::string_view kVersionKey = "DCP_VERSION";

// A tensor that is converted.
struct Chosen {
  int tensor;
  DType dtype;
};

class Planner {
 public:
  Planner(const Info& source, const ConvertOptions& options, const std::string& save_id)
      : source_(source), options_(options), save_id_(save_id) {}

  StatusOr<Conversion> plan(const std::string& target) {
    TESSERA_RETURN_IF_ERROR(choose());
    switch (options_.to) {
      case Format::kTessera:
        TESSERA_RETURN_IF_ERROR(plan_checkpoint());
        break;
      case Format::kSafetensors:
        TESSERA_RETURN_IF_ERROR(plan_safetensors(target));
        break;
      case Format::kNpy:
        TESSERA_RETURN_IF_ERROR(plan_npy(target));
        break;
    }
    return std::move(result_);
  }

 private:
  const TensorInfo& info(const Chosen& chosen) const {
    return source_.tensors[static_cast<size_t>(chosen.tensor)];
  }
  int64_t bytes_of(const Chosen& chosen) const {
    return num_bytes(info(chosen).shape, chosen.dtype);
  }

  Status choose() {
    for (size_t i = 0; i < source_.tensors.size(); ++i) {
      const TensorInfo& tensor = source_.tensors[i];
      if (options_.tensor.has_value() && !matches_pattern(*options_.tensor, tensor.name)) continue;
      TESSERA_ASSIGN_OR_RETURN(const DType dtype, checkpoint::internal::dtype_of(tensor));
      chosen_.push_back({static_cast<int>(i), dtype});
      result_.tensor_bytes += bytes_of(chosen_.back());
    }
    result_.num_tensors = static_cast<int64_t>(chosen_.size());
    if (!chosen_.empty() || !options_.tensor.has_value()) return absl::OkStatus();
    return absl::NotFoundError(
        absl::StrCat("no tensor is called ", tessera::in_quotes(*options_.tensor)));
  }

  // What a tensor adds to a header, at most.
  int64_t header_bytes(const Chosen& chosen) const {
    const std::string name = json_text(info(chosen).name);
    const int64_t rank = static_cast<int64_t>(info(chosen).shape.size());
    int64_t bytes = static_cast<int64_t>(name.size()) + 96 + 21 * rank;
    if (options_.to == Format::kTessera) {  // the entry of DCP_SHARDING_INFO, which is a text
      bytes += static_cast<int64_t>(json_text(name).size()) + 32 + 3 * rank;
    }
    return bytes;
  }

  // The tensors of each file, by max_file_bytes. `other_bytes` is the rest of a header.
  std::vector<std::vector<Chosen>> split(absl::Span<const Chosen> tensors,
                                         int64_t other_bytes) const {
    std::vector<std::vector<Chosen>> files;
    int64_t bytes = 0;
    for (const Chosen& chosen : tensors) {
      // No file is larger than the source, so the sum does not overflow.
      const int64_t more = bytes_of(chosen) + header_bytes(chosen);
      const bool is_full = options_.max_file_bytes > 0 && bytes + more > options_.max_file_bytes;
      if (files.empty() || is_full) {
        files.emplace_back();
        bytes = other_bytes;
      }
      files.back().push_back(chosen);
      bytes += more;
    }
    return files;
  }

  // A safetensors file with the tensors in the order of the reference library.
  StatusOr<PlannedFile> lay_out(std::string name, std::vector<Chosen> tensors,
                                const Metadata& metadata, int64_t alignment) const {
    std::sort(tensors.begin(), tensors.end(), [&](const Chosen& a, const Chosen& b) {
      const int64_t width_a = dtype_size(a.dtype);
      const int64_t width_b = dtype_size(b.dtype);
      return width_a != width_b ? width_a > width_b : info(a).name < info(b).name;
    });
    std::vector<files::SafetensorsEntry> entries;
    int64_t end = 0;
    for (const Chosen& chosen : tensors) {
      const int64_t begin = end;
      end += bytes_of(chosen);
      entries.push_back({info(chosen).name, std::string(files::safetensors_name(chosen.dtype)),
                         info(chosen).shape, begin, end});
    }
    PlannedFile file;
    file.name = std::move(name);
    TESSERA_ASSIGN_OR_RETURN(file.front,
                             files::format_safetensors_header(entries, metadata, alignment));
    const auto front_bytes = static_cast<int64_t>(file.front.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      file.tensors.push_back({tensors[i].tensor, front_bytes + entries[i].begin});
    }
    file.bytes = front_bytes + end;
    return file;
  }

  // The metadata of the source without what describes its files.
  Metadata kept_metadata() const {
    Metadata metadata = source_.metadata;
    for (const absl::string_view key : {kFormatKey, kVersionKey, kShardingKey, kSaveIdKey}) {
      const auto entry = metadata.find(std::string(key));
      // A checkpoint has these entries in its files; what its manifest has is the user's.
      if (entry != metadata.end() && source_.save_id.empty()) metadata.erase(entry);
    }
    return metadata;
  }

  Status plan_safetensors(const std::string& target) {
    Metadata metadata = kept_metadata();
    metadata.try_emplace(std::string(kFormatKey), "pt");
    int64_t metadata_bytes = 64;
    for (const auto& [key, value] : metadata) {
      metadata_bytes += static_cast<int64_t>(json_text(key).size() + json_text(value).size()) + 2;
    }
    if (options_.max_file_bytes == 0) {
      result_.is_folder = false;
      TESSERA_ASSIGN_OR_RETURN(PlannedFile file, lay_out(checkpoint::internal::last_part(target),
                                                         chosen_, metadata, kAlignment));
      result_.files.push_back(std::move(file));
      return absl::OkStatus();
    }
    std::vector<std::vector<Chosen>> split_tensors = split(chosen_, metadata_bytes);
    if (split_tensors.empty()) split_tensors.emplace_back();
    const size_t count = split_tensors.size();
    std::map<std::string, std::string> file_of;
    for (size_t i = 0; i < count; ++i) {
      std::string name = count == 1
                             ? "model.safetensors"
                             : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, count);
      for (const Chosen& chosen : split_tensors[i]) file_of[info(chosen).name] = name;
      TESSERA_ASSIGN_OR_RETURN(PlannedFile file,
                               lay_out(std::move(name), split_tensors[i], metadata, kAlignment));
      result_.files.push_back(std::move(file));
    }
    if (count == 1) return absl::OkStatus();
    const auto add_entry = [](std::string* out, const auto& entry) {
      absl::StrAppend(out, "    ", json_text(entry.first), ": ", json_text(entry.second));
    };
    result_.index = absl::StrCat("{\n  \"metadata\": {\n    \"total_size\": ", result_.tensor_bytes,
                                 "\n  },\n  \"weight_map\": {\n",
                                 absl::StrJoin(file_of, ",\n", add_entry), "\n  }\n}\n");
    return absl::OkStatus();
  }

  Status plan_checkpoint() {
    Info manifest;
    manifest.save_id = save_id_;
    manifest.step = source_.step;
    manifest.time = source_.time;
    manifest.num_clients = 1;
    manifest.metadata = kept_metadata();
    std::vector<Chosen> with_bytes;  // an empty tensor is in the manifest alone
    std::map<int, size_t> places;    // by index in the source, in the manifest
    for (const Chosen& chosen : chosen_) {
      TESSERA_RETURN_IF_ERROR(checkpoint::internal::check_tensor_name(info(chosen).name));
      places[chosen.tensor] = manifest.tensors.size();
      manifest.tensors.push_back(
          {info(chosen).name, info(chosen).dtype, info(chosen).shape, "", {}});
      if (bytes_of(chosen) > 0) with_bytes.push_back(chosen);
    }
    constexpr int64_t kOtherBytes = checkpoint::internal::kDataAlignment + 256;
    for (const std::vector<Chosen>& tensors : split(with_bytes, kOtherBytes)) {
      const int number = static_cast<int>(result_.files.size());
      TESSERA_ASSIGN_OR_RETURN(
          PlannedFile file, lay_out(checkpoint::internal::data_file_name(number, save_id_), tensors,
                                    data_metadata(tensors), checkpoint::internal::kDataAlignment));
      for (const PlacedTensor& placed : file.tensors) {
        TensorInfo& tensor = manifest.tensors[places[placed.tensor]];
        tensor.pieces.push_back({whole_box(tensor.shape), number, placed.offset});
      }
      manifest.files.push_back({file.name, file.bytes, {}});
      result_.files.push_back(std::move(file));
    }
    result_.manifest = std::move(manifest);
    return absl::OkStatus();
  }

  // What torch's distributed checkpoints expect in each file.
  Metadata data_metadata(const std::vector<Chosen>& tensors) const {
    std::vector<std::pair<std::string, std::string>> sharding;
    for (const Chosen& chosen : tensors) {
      const std::vector<int64_t> offsets(info(chosen).shape.size(), 0);
      sharding.emplace_back(info(chosen).name,
                            json_object({{"saved_offsets", json_array(offsets)}}));
    }
    return {{std::string(kFormatKey), "pt"},
            {std::string(kVersionKey), "1.0"},
            {std::string(kShardingKey), json_object(sharding)},
            {std::string(kSaveIdKey), save_id_}};
  }

  Status plan_npy(const std::string& target) {
    result_.is_folder = !absl::EndsWith(target, ".npy");
    if (!result_.is_folder && chosen_.size() != 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "one .npy file holds one array, and there are ", counted(result_.num_tensors, "tensor"),
          "; name one with --tensor, or a folder as target"));
    }
    for (const Chosen& chosen : chosen_) {
      if (chosen.dtype == DType::kBFloat16) {
        return absl::InvalidArgumentError(
            absl::StrCat("tensor ", tessera::in_quotes(info(chosen).name),
                         " is bf16, which .npy lacks; write safetensors"));
      }
      PlannedFile file;
      file.name = checkpoint::internal::last_part(target);
      if (result_.is_folder) {
        TESSERA_ASSIGN_OR_RETURN(file.name, npy_file_name(info(chosen).name));
      }
      file.front = files::format_npy_header(chosen.dtype, info(chosen).shape);
      const auto front_bytes = static_cast<int64_t>(file.front.size());
      file.tensors.push_back({chosen.tensor, front_bytes});
      file.bytes = front_bytes + bytes_of(chosen);
      result_.files.push_back(std::move(file));
    }
    return absl::OkStatus();
  }

  static constexpr int64_t kAlignment = 8;

  const Info& source_;
  const ConvertOptions& options_;
  const std::string& save_id_;
  std::vector<Chosen> chosen_;
  Conversion result_;
};

}  // namespace

StatusOr<Conversion> plan_conversion(const Info& source, const ConvertOptions& options,
                                     const std::string& target, const std::string& save_id) {
  return Planner(source, options, save_id).plan(target);
}

}  // namespace tessera::ckpt_tool
