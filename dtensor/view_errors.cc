// SPDX-License-Identifier: Apache-2.0
#include "dtensor/view_errors.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "dtensor/eigen.h"

namespace tessera::internal {
namespace {

constexpr int64_t kElementBytes = 8;  // of the largest dtype
constexpr int64_t kAlignment = 64;
constexpr size_t kMissingRank = 8;

std::string name_of(const ViewOrigin& origin) {
  return origin.errors == nullptr ? "a view" : origin.errors->name_of(origin.view);
}

}  // namespace

std::string ViewErrors::name_of(int view) const {
  if (view >= 0) return absl::StrCat("input ", view);
  return num_outputs_ == 1 && view == -1 ? "output" : absl::StrCat("output ", -1 - view);
}

void ViewErrors::report(Status error) {
  std::lock_guard<std::mutex> lock(mutex_);
  first_.Update(std::move(error));
}

Status ViewErrors::first() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return first_;
}

std::byte* ViewErrors::memory(int view, int64_t num_elements) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto [begin, end] = memories_.equal_range(view);
  for (auto known = begin; known != end; ++known) {
    if (known->second.num_elements >= num_elements) return known->second.data;
  }
  Memory memory = new_memory(std::max(num_elements, most_elements_));
  return memories_.emplace(view, std::move(memory))->second.data;
}

ViewErrors::Memory ViewErrors::new_memory(int64_t num_elements) const {
  Memory memory;
  memory.num_elements = num_elements;
  const int64_t size_bytes = std::max<int64_t>(1, num_elements) * kElementBytes;
  if (device_.uses_host_memory()) {
    memory.on_host.resize(size_bytes + kAlignment);
    const auto address = reinterpret_cast<uintptr_t>(memory.on_host.data());
    memory.data = memory.on_host.data() + (kAlignment - address % kAlignment);
    return memory;
  }
  StatusOr<std::shared_ptr<Buffer>> buffer = Buffer::allocate(device_.memory(), size_bytes);
  if (!buffer.ok()) return memory;
  memory.on_device = *std::move(buffer);
  const uint8_t zero = 0;
  std::byte* const data = memory.on_device->mutable_data();
  if (device_.fill(DType::kUint8, &zero, data, size_bytes).ok()) memory.data = data;
  return memory;
}

const Box& ViewErrors::missing_box(const Box& output) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (missing_box_ == nullptr) {
    Box box = output;
    box.offsets.resize(std::max(kMissingRank, output.offsets.size()), 0);
    box.sizes.resize(std::max(kMissingRank, output.sizes.size()), 1);
    missing_box_ = std::make_unique<const Box>(std::move(box));
  }
  return *missing_box_;
}

std::byte* refuse_map(const ViewOrigin& origin, const Shape& shape, size_t num_elements, int rank) {
  std::string message = absl::StrCat(name_of(origin), " of shape ", shape_to_string(shape));
  if (static_cast<int>(shape.size()) == rank) {
    absl::StrAppend(&message, " has ", num_elements,
                    " elements, which eigen() cannot map; set a shape of as many");
  } else {
    absl::StrAppend(&message, " mapped by eigen<", rank, ">(); ask for eigen<", shape.size(),
                    ">()");
  }
  // NOTIDY(banned): a map has no place for an error, and what is read through it would be wrong
  if (origin.errors == nullptr) throw std::invalid_argument(message);
  origin.errors->report(absl::InvalidArgumentError(message));
  return origin.errors->memory(origin.view, static_cast<int64_t>(num_elements));
}

void refuse_assignment(const ViewOrigin& origin, const Shape& to, const Shape& from) {
  origin.errors->report(absl::InvalidArgumentError(
      absl::StrCat(name_of(origin), " of shape ", shape_to_string(to), " was assigned ",
                   shape_to_string(from), "; assign what has its shape")));
}

}  // namespace tessera::internal
