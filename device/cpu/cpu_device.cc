// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/cpu_device.h"

#include <utility>
#include <vector>

#include "Eigen/Core"
#include "base/check.h"
#include "device/cpu/kernels.h"

namespace tessera {
namespace {

// Calls `fn` for each row of `box` with the flat index of its first element in a tensor of this
// shape, its place in the box and its length.
template <class Fn>
void for_each_row(const Shape& shape, const Box& box, Fn&& fn) {
  const int rank = static_cast<int>(shape.size());
  if (box.is_empty()) return;
  if (rank == 0) return fn(int64_t{0}, int64_t{0}, int64_t{1});
  const int64_t row = box.sizes[rank - 1];
  std::vector<int64_t> index(rank, 0);
  for (int64_t done = 0; done < box.num_elements(); done += row) {
    int64_t flat = 0;
    for (int dim = 0; dim < rank; ++dim) flat = flat * shape[dim] + box.offsets[dim] + index[dim];
    fn(flat, done, row);
    for (int dim = rank - 2; dim >= 0 && ++index[dim] == box.sizes[dim]; --dim) index[dim] = 0;
  }
}

}  // namespace

CpuDevice::CpuDevice(std::unique_ptr<CpuStream> stream, std::shared_ptr<ArenaPool> pool)
    : pool_(std::move(pool)), stream_(std::move(stream)) {}

StatusOr<std::unique_ptr<CpuDevice>> CpuDevice::create(absl::string_view subject,
                                                       StreamObserver* observer,
                                                       std::shared_ptr<ArenaPool> pool) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<CpuStream> stream, CpuStream::create(subject, observer));
  return std::unique_ptr<CpuDevice>(new CpuDevice(std::move(stream), std::move(pool)));
}

Status CpuDevice::fill(DType dtype, const void* element, std::byte* out, int64_t num_elements) {
  cpu::fill_elements(dtype, element, out, num_elements);
  return absl::OkStatus();
}

Status CpuDevice::iota(DType dtype, const Shape& shape, const Box& box, std::byte* out) {
  visit_dtype(dtype, [&]<class T>() {
    T* const elements = reinterpret_cast<T*>(out);
    for_each_row(shape, box, [&](int64_t flat, int64_t first, int64_t count) {
      for (int64_t i = 0; i < count; ++i) elements[first + i] = T(flat + i);
    });
  });
  return absl::OkStatus();
}

void CpuDevice::finish(absl::Span<const std::shared_ptr<Buffer>> buffers, const Status& status) {
  for (const std::shared_ptr<Buffer>& buffer : buffers) buffer->mutable_ready().set(status);
}

void CpuDevice::upload(const std::shared_ptr<const Buffer>& from,
                       const std::shared_ptr<Buffer>& to) {
  TESSERA_CHECK(from == to, "the host has written the buffer itself");
  finish(to, absl::OkStatus());
}

}  // namespace tessera
