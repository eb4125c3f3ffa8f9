// SPDX-License-Identifier: Apache-2.0
//
// Any DLPack structure is refused with a message, or its elements are copied as its fields say. Of
// the arrays that are accepted, those with an element outside of the memory here are not copied.
// Whatever the structures are, from_dlpack() calls the deleter of each exactly once.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/dtensor.h"
#include "files/dlpack.h"
#include "files/dlpack_array.h"
#include "fuzz/fuzz.h"
#include "layout/layout.h"
#include "mesh/mesh.h"

namespace tessera {
namespace {

using fuzz::ByteReader;
using fuzz::require;

constexpr int kMaxDims = 8;
constexpr int64_t kMaxElements = 4096;  // of a copy: strides of 0 make many elements of few bytes
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

constexpr DLPackVersion kVersions[] = {{1, 0}, {1, 1}, {1, 99}, {1, 0},
                                       {1, 0}, {1, 0}, {2, 0},  {0, 6}};
constexpr int32_t kNdims[] = {0, 1,        2,  3,   4,
                              5, kMaxDims, -1, 255, std::numeric_limits<int32_t>::min()};
constexpr DLDataType kDTypes[] = {
    {2, 32, 1}, {0, 8, 1},  {1, 8, 1},  {0, 32, 1}, {0, 64, 1}, {2, 16, 1},  {4, 16, 1},
    {6, 8, 1},  {2, 64, 1}, {1, 16, 1}, {6, 1, 1},  {2, 32, 2}, {2, 32, 0},  {10, 8, 1},
    {3, 64, 1}, {18, 8, 1}, {2, 0, 1},  {4, 8, 1},  {5, 64, 1}, {99, 32, 1}, {255, 255, 65535},
};
constexpr DLDevice kDevices[] = {{1, 0}, {1, 3}, {3, 0}, {1, 0}, {2, 0}, {77, 0}, {-1, -1}};
constexpr int64_t kSizes[] = {1,    2,   3, 4, 5, 7, 0, 100, -1, int64_t{1} << 31, int64_t{1} << 40,
                              kMax, kMin};
constexpr int64_t kStrides[] = {0,
                                1,
                                2,
                                3,
                                4,
                                6,
                                12,
                                -1,
                                -2,
                                -3,
                                -6,
                                100,
                                -100,
                                int64_t{1} << 40,
                                int64_t{1} << 61,
                                kMax,
                                kMin,
                                -(int64_t{1} << 61)};

template <class T, size_t kCount>
T pick(ByteReader& reader, const T (&choices)[kCount]) {
  return choices[reader.below(kCount)];
}

// A structure over bounded memory. Its deleter counts its calls.
class FuzzedArray {
 public:
  explicit FuzzedArray(ByteReader& reader) {
    for (size_t i = 0; i < memory_.size(); ++i) memory_[i] = static_cast<std::byte>(i * 37 + 1);
    managed_.version = pick(reader, kVersions);
    managed_.manager_ctx = this;
    managed_.deleter = [](DLManagedTensorVersioned* self) {
      ++static_cast<FuzzedArray*>(self->manager_ctx)->num_deleted_;
    };
    managed_.flags = static_cast<uint64_t>(reader.below(8));
    DLTensor& tensor = managed_.dl_tensor;
    tensor.ndim = pick(reader, kNdims);
    tensor.dtype = pick(reader, kDTypes);
    tensor.device = pick(reader, kDevices);
    // The offset in the memory, or where else the data is.
    const int place = reader.below(256);
    if (place < static_cast<int>(memory_.size())) {
      tensor.data = memory_.data() + place;
    } else if (place < 250) {
      tensor.data = nullptr;
    } else {
      tensor.data = reinterpret_cast<void*>(static_cast<uintptr_t>(place < 253 ? place : -place));
    }
    const int offset = reader.below(256);
    tensor.byte_offset =
        offset < 240 ? offset : ~static_cast<uint64_t>(offset - 240) >> (offset % 3);
    const int nulls = reader.below(16);
    for (int dim = 0; dim < kMaxDims; ++dim) {
      shape_[dim] = pick(reader, kSizes);
      strides_[dim] = pick(reader, kStrides);
    }
    tensor.shape = nulls == 15 ? nullptr : shape_.data();
    tensor.strides = nulls % 3 == 1 ? nullptr : strides_.data();
  }
  FuzzedArray(const FuzzedArray&) = delete;
  FuzzedArray& operator=(const FuzzedArray&) = delete;

  DLManagedTensorVersioned& managed() { return managed_; }
  int num_deleted() const { return num_deleted_; }

  // The bytes of an element, if they are all in the memory.
  std::optional<absl::Span<const std::byte>> bytes_at(const std::vector<int64_t>& index) const {
    const DLTensor& tensor = managed_.dl_tensor;
    const int64_t size = tensor.dtype.bits / 8;
    __int128 address = reinterpret_cast<uintptr_t>(tensor.data);
    address += tensor.byte_offset;
    __int128 dense = size;
    for (size_t dim = index.size(); dim-- > 0;) {
      address +=
          index[dim] *
          (tensor.strides == nullptr ? dense : static_cast<__int128>(tensor.strides[dim]) * size);
      dense *= tensor.shape[dim];
    }
    const __int128 offset = address - reinterpret_cast<uintptr_t>(memory_.data());
    if (offset < 0 || offset + size > static_cast<__int128>(memory_.size())) return std::nullopt;
    return absl::MakeConstSpan(memory_.data() + static_cast<size_t>(offset), size);
  }

 private:
  std::array<std::byte, 192> memory_;
  std::array<int64_t, kMaxDims> shape_;
  std::array<int64_t, kMaxDims> strides_;
  DLManagedTensorVersioned managed_ = {};
  int num_deleted_ = 0;
};

std::vector<int64_t> index_of(const Shape& shape, int64_t element) {
  std::vector<int64_t> index(shape.size());
  for (size_t dim = shape.size(); dim-- > 0;) {
    index[dim] = element % shape[dim];
    element /= shape[dim];
  }
  return index;
}

// Copies the elements where all of them are in the memory.
void check_accepted(const FuzzedArray& fuzzed, const files::StridedArray& array) {
  require(validate_shape(array.shape, array.dtype).ok(), "the shape");
  const int64_t count = num_elements(array.shape);
  require((array.first == nullptr) == (count == 0), "the first element");
  require(array.strides_bytes.size() == array.shape.size(), "the strides");
  if (count > kMaxElements) return;
  const int64_t size = dtype_size(array.dtype);
  std::vector<std::byte> expected;
  for (int64_t i = 0; i < count; ++i) {
    const std::optional<absl::Span<const std::byte>> bytes =
        fuzzed.bytes_at(index_of(array.shape, i));
    if (!bytes.has_value()) return;
    expected.insert(expected.end(), bytes->begin(), bytes->end());
    if (array.dtype == DType::kBool) {
      expected.back() = expected.back() == std::byte{0} ? std::byte{0} : std::byte{1};
    }
  }
  std::vector<std::byte> copied(count * size);
  files::copy_dense(array, copied.data());
  require(copied == expected, absl::StrCat("the elements of ", shape_to_string(array.shape)));
}

void check_array(FuzzedArray& fuzzed, std::optional<int> cuda_ordinal) {
  const StatusOr<files::StridedArray> array = files::check_dlpack(fuzzed.managed(), cuda_ordinal);
  if (array.ok()) return check_accepted(fuzzed, *array);
  require((absl::IsInvalidArgument(array.status()) || absl::IsUnimplemented(array.status())) &&
              !array.status().message().empty(),
          array.status().ToString());
}

// On a mesh without devices: no structure is copied.
void check_deleters(FuzzedArray& first, FuzzedArray& second, bool is_same) {
  const Mesh mesh = *Mesh::create({{"x", 2}});
  const std::vector<DLManagedTensorVersioned*> local = {
      &first.managed(), nullptr, is_same ? &first.managed() : &second.managed()};
  const DTensor tensor = from_dlpack({2}, Layout::parse(mesh, "[x]"), local);
  require(absl::IsFailedPrecondition(tensor.status()), tensor.status().ToString());
  require(first.num_deleted() == 1 && second.num_deleted() == (is_same ? 0 : 1), "the deleters");
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tessera::fuzz::ByteReader reader(data, size);
  const bool is_same = reader.coin();
  const std::optional<int> cuda_ordinal = reader.coin() ? std::optional<int>(0) : std::nullopt;
  tessera::FuzzedArray first(reader);
  tessera::FuzzedArray second(reader);
  tessera::check_array(first, cuda_ordinal);
  tessera::check_array(second, cuda_ordinal);
  tessera::check_deleters(first, second, is_same);
  return 0;
}
