// SPDX-License-Identifier: Apache-2.0
#include "input/loading.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "device/cpu/kernels.h"
#include "device/device.h"
#include "dtensor/client_waits.h"

namespace tessera::input::internal {
namespace {

// Tensor `k` of a batch. Its rows come from the elements that were read.
DTensor make_tensor(const TensorSpec& type, const Layout& layout, const RowBatch& batch, size_t k) {
  Shape shape = type.shape;
  shape.insert(shape.begin(), batch.size);
  const Box whole = whole_box(type.shape);
  const auto fill = [&](const Box& box, std::byte* out) {
    const Box part = {{box.offsets.begin() + 1, box.offsets.end()},
                      {box.sizes.begin() + 1, box.sizes.end()}};
    const int64_t part_bytes = num_bytes(part.sizes, type.dtype);
    auto row = std::lower_bound(batch.rows.begin(), batch.rows.end(), box.offsets[0]);
    for (int64_t i = 0; i < box.sizes[0]; ++i, ++row, out += part_bytes) {
      const std::byte* const from = batch.elements[row - batch.rows.begin()][k].bytes.data();
      if (part == whole) {
        std::memcpy(out, from, static_cast<size_t>(part_bytes));
      } else {
        cpu::copy_box(part, {from, whole}, {out, part}, dtype_size(type.dtype));
      }
    }
  };
  return tessera::internal::from_function_raw(type.dtype, shape, layout, fill);
}

}  // namespace

ReportedWait report_reading(const Client& client, std::string call,
                            std::vector<std::shared_ptr<const Node>> nodes) {
  const bool can_wait =
      std::any_of(nodes.begin(), nodes.end(), [](const auto& node) { return node->can_fail(); });
  WaitReports* const reports = can_wait ? tessera::internal::wait_reports_of(client) : nullptr;
  return ReportedWait(reports, std::move(call), [nodes = std::move(nodes)] {
    std::vector<std::string> texts;
    for (const auto& node : nodes) node->describe_calls(&texts);
    if (texts.empty()) texts.emplace_back("its elements are being read");
    return WaitReports::Missing{absl::StrJoin(texts, "; "), {}};
  });
}

std::vector<TensorSpec> types_of(const Element& element) {
  std::vector<TensorSpec> types;
  for (const HostArray& array : element) types.push_back({array.dtype, array.shape});
  return types;
}

std::vector<DTensor> make_tensors(absl::Span<const TensorSpec> types,
                                  absl::Span<const Layout> layouts, const RowBatch& batch) {
  std::vector<DTensor> tensors;
  for (size_t k = 0; k < types.size(); ++k) {
    tensors.push_back(make_tensor(types[k], layouts[k], batch, k));
  }
  return tensors;
}

Status check_load_options(absl::string_view call, const Client& client, const Mesh& mesh,
                          const LoadOptions& options) {
  constexpr int kMaxPrefetch = 1024;
  if (options.prefetch < 0 || options.prefetch > kMaxPrefetch) {
    return absl::InvalidArgumentError(
        absl::StrCat(call, ": prefetch is ", options.prefetch, "; give 0 to ", kMaxPrefetch));
  }
  if (options.transfer == Transfer::kToDevice) return absl::OkStatus();
  if (options.transfer != Transfer::kOnHost) {
    return absl::InvalidArgumentError(
        absl::StrCat(call, ": Transfer(", static_cast<int>(options.transfer),
                     ") is not an enumerator; use kToDevice or kOnHost"));
  }
  for (const Device& device : client.local_devices()) {
    if (device.type != DeviceType::kCuda) continue;
    if (!mesh.position_of_device(device.id).has_value()) continue;
    return absl::UnimplementedError(absl::StrCat(
        call,
        ": kOnHost is not implemented for GPUs, whose tensors are in their memory; use kToDevice, "
        "or a mesh of CPU devices"));
  }
  return absl::OkStatus();
}

}  // namespace tessera::input::internal
