// SPDX-License-Identifier: Apache-2.0
#include "files/npy_data.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "files/box_runs.h"

namespace tessera::files {
namespace {

constexpr int64_t kBufferBytes = int64_t{4} << 20;
constexpr int64_t kDirectBytes = int64_t{64} << 10;

// Reads runs of one file in ascending order. Short ones are read with the bytes between them, up to
// as many as the buffer has.
class RunReader {
 public:
  RunReader(const RandomAccessFile& file, std::byte* out) : file_(file), out_(out) {}

  void add(int64_t offset, int64_t target, int64_t bytes) {
    if (!status_.ok()) return;
    const bool is_direct = bytes >= kDirectBytes;
    if (is_direct || (!runs_.empty() && offset + bytes - runs_.front().offset > kBufferBytes)) {
      flush();
    }
    if (!is_direct) {
      runs_.push_back({offset, target, bytes});
    } else if (status_.ok()) {
      status_ = file_.read(offset, absl::MakeSpan(out_ + target, static_cast<size_t>(bytes)));
    }
  }
  Status finish() {
    flush();
    return status_;
  }

 private:
  struct Run {
    int64_t offset, target, bytes;
  };

  void flush() {
    if (runs_.empty() || !status_.ok()) return;
    const int64_t begin = runs_.front().offset;
    buffer_.resize(static_cast<size_t>(runs_.back().offset + runs_.back().bytes - begin));
    status_ = file_.read(begin, absl::MakeSpan(buffer_));
    if (!status_.ok()) return;
    for (const Run& run : runs_) {
      std::memcpy(out_ + run.target, buffer_.data() + (run.offset - begin),
                  static_cast<size_t>(run.bytes));
    }
    runs_.clear();
  }

  const RandomAccessFile& file_;
  std::byte* const out_;
  std::vector<Run> runs_;
  std::vector<std::byte> buffer_;
  Status status_;
};

Status read_row_major(const RandomAccessFile& file, int64_t data_offset, int64_t element_bytes,
                      const Shape& shape, const Box& box, std::byte* out) {
  RunReader reader(file, out);
  for_each_run(whole_box(shape), box, box, element_bytes,
               [&](int64_t offset, int64_t target, int64_t bytes) {
                 reader.add(data_offset + offset, target, bytes);
               });
  return reader.finish();
}

std::vector<int64_t> reversed(const std::vector<int64_t>& values) {
  return {values.rbegin(), values.rend()};
}

// Copies the plane of the first and the last dim: `rows` elements apart by 1 in `from` and by
// `to_step` in `to`, and `columns` apart by `from_step` and by 1. Tiles of both fit in the cache.
template <class T>
void transpose_plane(int64_t rows, int64_t columns, const T* from, int64_t from_step, T* to,
                     int64_t to_step) {
  constexpr int64_t kTile = 32;
  for (int64_t row = 0; row < rows; row += kTile) {
    const int64_t row_end = std::min(rows, row + kTile);
    for (int64_t column = 0; column < columns; column += kTile) {
      const int64_t column_end = std::min(columns, column + kTile);
      for (int64_t i = row; i < row_end; ++i) {
        for (int64_t j = column; j < column_end; ++j) to[i * to_step + j] = from[i + j * from_step];
      }
    }
  }
}

// Copies an array of these sizes whose first dim is the innermost to one whose last dim is.
template <class T>
void transpose(const Shape& sizes, const T* from, T* to) {
  const size_t rank = sizes.size();
  std::vector<int64_t> from_steps(rank, 1), to_steps(rank, 1);
  for (size_t dim = 1; dim < rank; ++dim) {
    from_steps[dim] = from_steps[dim - 1] * sizes[dim - 1];
    to_steps[rank - 1 - dim] = to_steps[rank - dim] * sizes[rank - dim];
  }
  std::vector<int64_t> index(rank, 0);  // of the plane: its first and last members stay 0
  while (true) {
    const int64_t begin = std::inner_product(index.begin(), index.end(), from_steps.begin(), 0L);
    const int64_t target = std::inner_product(index.begin(), index.end(), to_steps.begin(), 0L);
    transpose_plane(sizes.front(), sizes.back(), from + begin, from_steps.back(), to + target,
                    to_steps.front());
    size_t dim = rank - 1;
    while (--dim > 0 && ++index[dim] == sizes[dim]) index[dim] = 0;
    if (dim == 0) return;
  }
}

// transpose() for elements of this size. An array of rank below 2 is the same in both orders.
void transpose_bytes(const Shape& sizes, int64_t element_bytes, const std::byte* from,
                     std::byte* to) {
  const int64_t count = num_elements(sizes);
  if (count == 0) return;
  if (sizes.size() < 2) {
    std::memcpy(to, from, static_cast<size_t>(count * element_bytes));
    return;
  }
  const auto run = [&]<class T>(T) {
    transpose(sizes, reinterpret_cast<const T*>(from), reinterpret_cast<T*>(to));
  };
  switch (element_bytes) {
    case 1:
      return run(uint8_t{});
    case 2:
      return run(uint16_t{});
    case 4:
      return run(uint32_t{});
    default:
      return run(uint64_t{});
  }
}

}  // namespace

Status read_npy_box(const RandomAccessFile& file, const NpyHeader& header, const Box& box,
                    std::byte* out) {
  const int64_t count = box.num_elements();
  const int64_t element_bytes = dtype_size(header.dtype);
  if (header.is_fortran) {
    std::vector<std::byte> columns(static_cast<size_t>(count * element_bytes));
    const Box stored = {reversed(box.offsets), reversed(box.sizes)};
    TESSERA_RETURN_IF_ERROR(read_row_major(file, header.data_offset, element_bytes,
                                           reversed(header.shape), stored, columns.data()));
    transpose_bytes(box.sizes, element_bytes, columns.data(), out);
  } else {
    TESSERA_RETURN_IF_ERROR(
        read_row_major(file, header.data_offset, element_bytes, header.shape, box, out));
  }
  if (header.is_big_endian) {
    for (int64_t i = 0; i < count; ++i) {
      std::reverse(out + i * element_bytes, out + (i + 1) * element_bytes);
    }
  }
  if (header.dtype == DType::kBool) {
    std::transform(out, out + count, out,
                   [](std::byte value) { return value == std::byte{0} ? value : std::byte{1}; });
  }
  return absl::OkStatus();
}

}  // namespace tessera::files
