// SPDX-License-Identifier: Apache-2.0
//
// Files of one array, whose elements are its parts along dim 0: .npy of NumPy (files/npy.h), and
// IDX of the MNIST data sets.
//
//   0 0 type rank | rank sizes of 4 bytes, big-endian | elements, big-endian
#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/shape.h"
#include "base/text.h"
#include "files/npy.h"
#include "input/file_sources.h"
#include "input/input_file.h"

namespace tessera::input::internal {
namespace {

static_assert(std::endian::native == std::endian::little,
              "elements are taken as they are in files");

// Both formats are described by one header.
using ArrayHeader = files::NpyHeader;

// The data of an array in Fortran order is a list of columns, one for each number of an element. A
// column holds this number of all elements:
//
//   shape [3, 2, 2]    file: 000 100 200 | 010 110 210 | 001 101 201 | 011 111 211
//   element 1          100, 101, 110, 111: one number of each column
//
// Consecutive elements come from a block, which has a part of each column. Other elements are read
// number by number. Thread-safe.
class FortranReader {
 public:
  FortranReader(std::shared_ptr<const InputFile> file, const ArrayHeader& header)
      : file_(std::move(file)),
        offset_(header.data_offset),
        num_elements_(header.shape[0]),
        shape_(header.shape.begin() + 1, header.shape.end()),
        number_bytes_(dtype_size(header.dtype)),
        num_columns_(tessera::num_elements(shape_)) {
    // A page of each column, and at most 16 MiB.
    constexpr int64_t kPageBytes = 1 << 12;
    constexpr int64_t kMostBlockBytes = 1 << 24;
    const int64_t element_bytes = std::max<int64_t>(1, num_columns_ * number_bytes_);
    block_elements_ =
        std::clamp<int64_t>(kMostBlockBytes / element_bytes, 1, kPageBytes / number_bytes_);
  }

  Status read(int64_t index, absl::Span<std::byte> out,
              absl::FunctionRef<std::string()> name) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool is_next = index == std::exchange(last_, index) + 1;
    if (index < block_first_ || index >= block_first_ + block_count_) {
      if (!is_next) return read_columns(index, 1, out, name);
      block_count_ = 0;
      const int64_t count = std::min(block_elements_, num_elements_ - index);
      block_.resize(static_cast<size_t>(count * num_columns_ * number_bytes_));
      TESSERA_RETURN_IF_ERROR(read_columns(index, count, absl::MakeSpan(block_), name));
      block_first_ = index;
      block_count_ = count;
    }
    const auto from = block_.begin() + (index - block_first_) * static_cast<int64_t>(out.size());
    std::copy_n(from, out.size(), out.begin());
    return absl::OkStatus();
  }

 private:
  // `count` elements from `first` on, row-major.
  Status read_columns(int64_t first, int64_t count, absl::Span<std::byte> out,
                      absl::FunctionRef<std::string()> name) const {
    std::vector<std::byte> part(static_cast<size_t>(count * number_bytes_));
    Shape place(shape_.size(), 0);  // of the column in an element; its first dim moves first
    for (int64_t column = 0; column < num_columns_; ++column) {
      TESSERA_RETURN_IF_ERROR(file_->read(
          offset_ + (column * num_elements_ + first) * number_bytes_, absl::MakeSpan(part), name));
      int64_t at = 0;
      for (size_t dim = 0; dim < place.size(); ++dim) at = at * shape_[dim] + place[dim];
      for (int64_t i = 0; i < count; ++i) {
        std::copy_n(part.begin() + i * number_bytes_, number_bytes_,
                    out.begin() + (i * num_columns_ + at) * number_bytes_);
      }
      for (size_t dim = 0; dim < place.size() && ++place[dim] == shape_[dim]; ++dim) {
        place[dim] = 0;
      }
    }
    return absl::OkStatus();
  }

  const std::shared_ptr<const InputFile> file_;
  const int64_t offset_;
  const int64_t num_elements_;
  const Shape shape_;  // of an element
  const int64_t number_bytes_;
  const int64_t num_columns_;
  int64_t block_elements_;

  mutable std::mutex mutex_;  // guards the members below
  mutable std::vector<std::byte> block_;
  mutable int64_t block_first_ = 0;
  mutable int64_t block_count_ = 0;
  mutable int64_t last_ = -1;
};

// The elements are the parts of an array along dim 0.
class ArraySource : public Source {
 public:
  ArraySource(std::shared_ptr<const InputFile> file, ArrayHeader header)
      : file_(std::move(file)),
        header_(std::move(header)),
        element_shape_(header_.shape.begin() + 1, header_.shape.end()),
        element_bytes_(num_bytes(element_shape_, header_.dtype)) {
    if (header_.is_fortran && !element_shape_.empty()) {
      fortran_ = std::make_unique<const FortranReader>(file_, header_);
    }
  }

  std::vector<TensorSpec> spec() const override { return {{header_.dtype, element_shape_}}; }
  std::optional<int64_t> size() const override { return header_.shape[0]; }
  StatusOr<Element> read(int64_t index) const override {
    HostArray array{header_.dtype, element_shape_,
                    std::vector<std::byte>(static_cast<size_t>(element_bytes_))};
    const auto name = [index] { return absl::StrCat("element ", index); };
    const absl::Span<std::byte> out = absl::MakeSpan(array.bytes);
    TESSERA_RETURN_IF_ERROR(
        fortran_ == nullptr ? file_->read(header_.data_offset + index * element_bytes_, out, name)
                            : fortran_->read(index, out, name));
    const int64_t size = dtype_size(header_.dtype);
    if (header_.is_big_endian && size > 1) {
      for (size_t i = 0; i < array.bytes.size(); i += static_cast<size_t>(size)) {
        std::reverse(array.bytes.begin() + i, array.bytes.begin() + i + size);
      }
    }
    if (header_.dtype == DType::kBool) {
      for (const std::byte b : array.bytes) {
        if (b > std::byte{1}) {
          return file_->error(absl::StrCat(name(), " has the byte ", static_cast<int>(b),
                                           " where a bool is 0 or 1"));
        }
      }
    }
    return Element{std::move(array)};
  }
  std::vector<std::string> files() const override { return {file_->path()}; }
  StatusOr<std::shared_ptr<const Source>> with_files(
      absl::Span<const int64_t> keep) const override {
    if (keep.size() == 1 && keep[0] == 0) {
      return std::make_shared<const ArraySource>(file_, header_);
    }
    return absl::InvalidArgumentError(
        absl::StrCat("the data set is the one file ", in_quotes(file_->path())));
  }

 private:
  const std::shared_ptr<const InputFile> file_;
  const ArrayHeader header_;
  const Shape element_shape_;
  const int64_t element_bytes_;
  std::unique_ptr<const FortranReader> fortran_;
};

// Makes a source of an array whose bytes are in the file.
StatusOr<NamedSource> array_source(absl::string_view kind, std::shared_ptr<const InputFile> file,
                                   ArrayHeader header) {
  if (header.shape.empty()) {
    return file->error("its array is a scalar; elements are the parts of an array along dim 0");
  }
  const uint64_t hash = hash_of_files(kind, {file});
  return NamedSource{std::make_shared<const ArraySource>(std::move(file), std::move(header)), hash};
}

// Reads the header of an IDX file from its first bytes, at most kMaxIdxHeaderBytes.
constexpr int64_t kMaxIdxHeaderBytes = 4 + 255 * 4;
StatusOr<ArrayHeader> parse_idx_header(absl::string_view bytes) {
  if (bytes.size() < 4) return absl::InvalidArgumentError("it ends in the header");
  if (bytes[0] != 0 || bytes[1] != 0) {
    return absl::InvalidArgumentError(
        "it is not an IDX file: it does not begin with two zero bytes");
  }
  ArrayHeader header = {.dtype = DType::kUint8,
                        .shape = {},
                        .is_fortran = false,
                        .is_big_endian = true,
                        .data_offset = 0};
  switch (const int type = static_cast<uint8_t>(bytes[2])) {
    case 0x08:
      header.dtype = DType::kUint8;
      break;
    case 0x09:
      header.dtype = DType::kInt8;
      break;
    case 0x0c:
      header.dtype = DType::kInt32;
      break;
    case 0x0d:
      header.dtype = DType::kFloat32;
      break;
    case 0x0e:
      header.dtype = DType::kFloat64;
      break;
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "its element type is 0x", absl::Hex(type, absl::kZeroPad2),
          "; supported are 0x08 (u8), 0x09 (i8), 0x0c (i32), 0x0d (f32) and 0x0e (f64)"));
  }
  const size_t rank = static_cast<uint8_t>(bytes[3]);
  if (bytes.size() < 4 + 4 * rank) return absl::InvalidArgumentError("it ends in the header");
  for (size_t dim = 0; dim < rank; ++dim) {
    int64_t size = 0;
    for (const char byte : bytes.substr(4 + 4 * dim, 4)) {
      size = size << 8 | static_cast<uint8_t>(byte);
    }
    header.shape.push_back(size);
  }
  header.data_offset = static_cast<int64_t>(4 + 4 * rank);
  return header;
}

// Checks that an array of IDX ends where the file does.
Status check_idx(const ArrayHeader& header, int64_t file_bytes) {
  TESSERA_RETURN_IF_ERROR(validate_shape(header.shape, header.dtype));
  // Both are below 2^63, and the offset is small.
  const uint64_t needed = static_cast<uint64_t>(header.data_offset) +
                          static_cast<uint64_t>(num_bytes(header.shape, header.dtype));
  if (static_cast<uint64_t>(file_bytes) == needed) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("its array ", TensorSpec{header.dtype, header.shape}.to_string(), " after ",
                   header.data_offset, " bytes of header makes ", needed,
                   " bytes, and the file has ", file_bytes));
}

}  // namespace

StatusOr<NamedSource> npy_source(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<const InputFile> file, InputFile::open(path));
  TESSERA_ASSIGN_OR_RETURN(ArrayHeader header, files::read_npy_header(file->file()));
  return array_source("npy", std::move(file), std::move(header));
}

StatusOr<NamedSource> idx_source(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<const InputFile> file, InputFile::open(path));
  TESSERA_ASSIGN_OR_RETURN(const std::string front, file->read_front(kMaxIdxHeaderBytes));
  StatusOr<ArrayHeader> header = parse_idx_header(front);
  if (!header.ok()) return file->error(header.status().message());
  if (const Status status = check_idx(*header, file->size()); !status.ok()) {
    return file->error(status.message());
  }
  return array_source("idx", std::move(file), *std::move(header));
}

}  // namespace tessera::input::internal
