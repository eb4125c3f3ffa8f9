// SPDX-License-Identifier: Apache-2.0
//
// Files of records of one size. An element is the bytes of a record.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/stable_hash.h"
#include "input/file_sources.h"
#include "input/input_file.h"

namespace tessera::input::internal {
namespace {

using Files = std::vector<std::shared_ptr<const InputFile>>;

class RecordSource : public Source {
 public:
  RecordSource(Files files, int64_t record_bytes)
      : files_(std::move(files)),
        record_bytes_(record_bytes),
        parts_(counts_of(files_, record_bytes)) {}

  std::vector<TensorSpec> spec() const override { return {{DType::kUint8, {record_bytes_}}}; }
  std::optional<int64_t> size() const override { return parts_.size(); }
  StatusOr<Element> read(int64_t index) const override {
    const FileParts::Place place = parts_.find(index);
    HostArray record{
        DType::kUint8, {record_bytes_}, std::vector<std::byte>(static_cast<size_t>(record_bytes_))};
    TESSERA_RETURN_IF_ERROR(
        files_[place.file]->read(place.index * record_bytes_, absl::MakeSpan(record.bytes),
                                 [&] { return absl::StrCat("record ", place.index); }));
    Element element;
    element.push_back(std::move(record));
    return element;
  }
  std::vector<std::string> files() const override {
    std::vector<std::string> files;
    for (const auto& file : files_) files.push_back(file->path());
    return files;
  }
  StatusOr<std::shared_ptr<const Source>> with_files(
      absl::Span<const int64_t> keep) const override {
    Files kept;
    for (const int64_t i : keep) kept.push_back(files_[i]);
    return std::make_shared<const RecordSource>(std::move(kept), record_bytes_);
  }

 private:
  static std::vector<int64_t> counts_of(const Files& files, int64_t record_bytes) {
    std::vector<int64_t> counts;
    for (const auto& file : files) counts.push_back(file->size() / record_bytes);
    return counts;
  }

  const Files files_;
  const int64_t record_bytes_;
  const FileParts parts_;
};

}  // namespace

StatusOr<NamedSource> record_source(const std::vector<std::string>& files, int64_t bytes) {
  if (bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("fixed_records: a record has ", bytes, " bytes; give 1 or more"));
  }
  TESSERA_ASSIGN_OR_RETURN(Files opened, open_files(files));
  for (const auto& file : opened) {
    if (file->size() % bytes != 0) {
      return file->error(absl::StrCat("record ", file->size() / bytes, " has ",
                                      file->size() % bytes, " of ", bytes,
                                      " bytes: the file ends in it"));
    }
  }
  const uint64_t hash =
      stable_hash(absl::MakeConstSpan(&bytes, 1), hash_of_files("fixed_records", opened));
  return NamedSource{std::make_shared<const RecordSource>(std::move(opened), bytes), hash};
}

}  // namespace tessera::input::internal
