// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/testing/saved.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "checkpoint/manifest.h"
#include "checkpoint/writers.h"
#include "mesh/mesh.h"

namespace tessera::checkpoint::testing {

StatusOr<Info> saved_info(const Layout& layout, const Shape& shape, DType dtype,
                          absl::string_view name, int64_t min_split_bytes) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<internal::WrittenBox> written,
                           internal::written_boxes(layout, shape, dtype, name, min_split_bytes));
  std::sort(written.begin(), written.end(),
            [](const auto& a, const auto& b) { return a.device < b.device; });
  Info info;
  info.save_id = "7c9e6679a1b2c3d4";
  info.num_clients = 1;
  TensorInfo tensor{
      std::string(name), std::string(dtype_name(dtype)), shape, layout.to_string_with_mesh(), {}};
  for (const internal::WrittenBox& write : written) {
    const int64_t bytes = kDataBegin + write.box.num_elements() * dtype_size(dtype);
    const int64_t blocks = internal::num_blocks(bytes);
    tensor.pieces.push_back({write.box, static_cast<int>(info.files.size()), kDataBegin});
    info.files.push_back({absl::StrCat(write.device), bytes, std::vector<uint64_t>(blocks)});
  }
  info.tensors.push_back(std::move(tensor));
  return info;
}

std::string boxes_text(const Info& info) {
  const std::vector<Piece>& pieces = info.tensors[0].pieces;
  if (pieces.empty()) return "no file";
  return absl::StrJoin(pieces, "; ", [&](std::string* out, const Piece& piece) {
    absl::StrAppend(out, info.files[piece.file].name, " ", piece.box.to_string());
  });
}

std::string bytes_of_box(const Shape& shape, const Box& box, int64_t element_bytes) {
  std::string bytes;
  std::vector<int64_t> index = box.offsets;
  for (int64_t n = box.num_elements(); n > 0; --n) {
    int64_t element = 0;
    for (size_t d = 0; d < shape.size(); ++d) element = element * shape[d] + index[d];
    for (int64_t i = 0; i < element_bytes; ++i) {
      bytes.push_back(static_cast<char>((element * element_bytes + i) % 251));
    }
    for (size_t d = shape.size(); d-- > 0;) {
      if (++index[d] < box.offsets[d] + box.sizes[d]) break;
      index[d] = box.offsets[d];
    }
  }
  return bytes;
}

StatusOr<std::vector<std::vector<std::string>>> read_table(absl::string_view name,
                                                           size_t num_cells) {
  const std::string path = absl::StrCat("checkpoint/testdata/", name);
  std::ifstream file(path);
  if (!file.is_open()) return absl::NotFoundError(absl::StrCat("no file ", path));
  std::vector<std::vector<std::string>> rows;
  std::string line;
  std::getline(file, line);  // The names of the columns.
  while (std::getline(file, line)) {
    rows.push_back(absl::StrSplit(line, '\t'));
    if (rows.back().size() == num_cells) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("row \"", line, "\" has ", rows.back().size(), " cells"));
  }
  return rows;
}

StatusOr<Shape> parse_shape(absl::string_view text) {
  Shape shape;
  for (absl::string_view size : absl::StrSplit(text, absl::ByAnyChar("[], "), absl::SkipEmpty())) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(size, &number)) return absl::InvalidArgumentError(text);
    shape.push_back(number);
  }
  return shape;
}

StatusOr<Layout> parse_layout(absl::string_view mesh, absl::string_view layout) {
  TESSERA_ASSIGN_OR_RETURN(Mesh parsed, Mesh::parse(mesh));
  return Layout::parse(std::move(parsed), layout);
}

StatusOr<DType> parse_dtype(absl::string_view text) {
  for (int i = 0; i < kNumDTypes; ++i) {
    if (dtype_name(static_cast<DType>(i)) == text) return static_cast<DType>(i);
  }
  return absl::InvalidArgumentError(text);
}

}  // namespace tessera::checkpoint::testing
