// SPDX-License-Identifier: Apache-2.0
//
// Printing tensors: operator<<, from the local shards alone, and to_string(), from all of them.
//
// to_string() of an elided tensor moves only the elements that are shown. In the tensors that it
// moves they are integers with the bits of the elements, since every bit of a float must arrive:
//
//   x [x, -] max{y}, 2 terms                     each device has its shown elements, 0 elsewhere
//   bits [2, shown], layout [y, -] sum{x}        row k: the shown elements of term k
//     relayout to [y, -]                         each device has all shown elements of its term
//   values [shown], layout [-] max{y}            the terms as elements again
//     to_host()
//
// Each element is in one shard along the axes that split x, so each sum has one term that is not 0.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "device/local_device.h"
#include "dtensor/array_text.h"
#include "dtensor/dtensor.h"
#include "dtensor/local_shards.h"
#include "dtensor/relayout.h"
#include "dtensor/tensor_access.h"
#include "dtensor/tensor_rep.h"

namespace tessera {
namespace {

using internal::GivenShards;
using internal::RawShard;
using internal::ShardPlace;
using internal::TensorAccess;
using internal::TensorRep;
using Bytes = std::vector<std::byte>;

// ---- operator<<

// Local shards of equal contents.
struct PrintedShard {
  std::vector<int> device_ids;
  size_t first = 0;  // in TensorRep::buffers
};

std::vector<PrintedShard> printed_shards(const TensorRep& rep) {
  std::vector<PrintedShard> printed;
  const auto key = [&](size_t i) {
    return std::pair(rep.box_of(rep.devices[i]),
                     rep.layout->partial_index(rep.devices[i].position));
  };
  const auto is_good = [&](size_t i) {
    const Completion& ready = rep.buffers[i]->ready();
    return ready.done() && ready.status().ok();
  };
  for (size_t i = 0; i < rep.buffers.size(); ++i) {
    PrintedShard* found = nullptr;
    for (PrintedShard& earlier : printed) {
      if (is_good(i) && is_good(earlier.first) && key(i) == key(earlier.first)) found = &earlier;
    }
    if (found == nullptr) found = &printed.emplace_back(PrintedShard{{}, i});
    found->device_ids.push_back(rep.devices[i].device_id);
  }
  return printed;
}

std::string shard_text(const TensorRep& rep, const PrintedShard& shard) {
  const MeshDevice& device = rep.devices[shard.first];
  const Buffer& buffer = *rep.buffers[shard.first];
  const Box box = rep.box_of(device);
  std::string text = absl::StrCat(shard.device_ids.size() == 1 ? "device " : "devices ",
                                  absl::StrJoin(shard.device_ids, ", "), " ", box.to_string());
  if (rep.layout->is_partial()) {
    absl::StrAppend(&text, ", term ", rep.layout->partial_index(device.position));
  }
  if (!buffer.ready().done()) return absl::StrCat(text, ", pending");
  if (const Status status = buffer.ready().status(); !status.ok()) {
    return absl::StrCat(text, ", failed: ", status.message());
  }
  if (!rep.runtime->device(device.ordinal).uses_host_memory()) {
    return absl::StrCat(text, ", in memory of a GPU");
  }
  return absl::StrCat(text, "\n", internal::whole_array_text(rep.dtype, box.sizes, buffer.data()));
}

// ---- to_string()

// Integers that hold the bits of an element; halves have no integer type of their size.
DType bits_dtype(DType dtype) {
  switch (dtype_size(dtype)) {
    case 1:
      return DType::kUint8;
    case 8:
      return DType::kInt64;
    default:
      return DType::kInt32;
  }
}

// Elements as integers of bits_dtype(), and the inverse. Lowest bytes first.
Bytes resized(const std::byte* elements, int64_t count, int64_t from_size, int64_t to_size) {
  Bytes result(count * to_size);
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(result.data() + i * to_size, elements + i * from_size,
                std::min(from_size, to_size));
  }
  return result;
}

// The text of an axis as Layout::create() and with_partial() read it.
std::string axis_text(const Mesh& mesh, const SubAxis& part) {
  const MeshAxis& axis = mesh.axes()[part.axis];
  if (part.pre == 1 && part.size == axis.size) return axis.name;
  return absl::StrCat(axis.name, ":(", part.pre, ")", part.size);
}

// A tensor of shards that this client makes one by one; `make(i)` returns shard i. Its first error
// becomes the error of the local shards, so that the other clients get it too.
template <class Make>
DTensor from_made(DType dtype, const Shape& shape, const StatusOr<Layout>& layout, size_t count,
                  Make make) {
  std::vector<Bytes> shards;
  Status error;
  for (size_t i = 0; i < count && error.ok(); ++i) {
    StatusOr<Bytes> shard = make(static_cast<int>(i));
    error.Update(shard.status());
    if (shard.ok()) shards.push_back(*std::move(shard));
  }
  return internal::from_given_shards(
      dtype, shape, layout,
      {.function = "to_string",
       .count = count,
       .check = [&](absl::Span<const ShardPlace>) { return error; },
       .write = [&](size_t i,
                    std::byte* out) { std::memcpy(out, shards[i].data(), shards[i].size()); }});
}

// The elements that are shown. Requires a local shard, and that the thread may wait.
StatusOr<Bytes> shown_elements(const DTensor& tensor) {
  const TensorRep& rep = TensorAccess::rep(tensor);
  const Layout& layout = *rep.layout;
  const Shape& shape = *rep.shape;
  const int64_t count = num_elements(internal::shown_shape(shape));
  const int64_t size = dtype_size(rep.dtype);
  const int64_t bits_size = dtype_size(bits_dtype(rep.dtype));
  const auto own_elements = [&](int i) -> StatusOr<Bytes> {
    TESSERA_ASSIGN_OR_RETURN(const RawShard shard, TensorAccess::raw_shard(tensor, i));
    Bytes shown(count * size);
    internal::copy_shown(shape, shard.box, size, shard.data, shown.data());
    return shown;
  };
  if (layout.is_fully_replicated()) return own_elements(0);
  DimSharding terms;
  for (const SubAxis& part : layout.partial_axes()) terms.push_back(axis_text(layout.mesh(), part));
  std::vector<std::string> split;
  for (const DimSharding& dim : layout.dims()) split.insert(split.end(), dim.begin(), dim.end());
  TESSERA_ASSIGN_OR_RETURN(const Layout rows, Layout::create(layout.mesh(), {terms, {}}));
  const DTensor bits = from_made(bits_dtype(rep.dtype), {layout.num_partial_terms(), count},
                                 split.empty() ? StatusOr<Layout>(rows) : rows.with_partial(split),
                                 rep.buffers.size(), [&](int i) -> StatusOr<Bytes> {
                                   TESSERA_ASSIGN_OR_RETURN(const Bytes shown, own_elements(i));
                                   return resized(shown.data(), count, size, bits_size);
                                 });
  if (!layout.is_partial()) {
    TESSERA_ASSIGN_OR_RETURN(const RawShard whole, TensorAccess::raw_to_host(bits, "to_string"));
    return resized(whole.data, count, bits_size, size);
  }
  const DTensor by_term = relayout(bits, rows);
  TESSERA_ASSIGN_OR_RETURN(const Layout one_dim, Layout::replicated(layout.mesh(), 1));
  const DTensor values = from_made(
      rep.dtype, {count}, one_dim.with_partial(terms, *layout.partial_op()), rep.buffers.size(),
      [&](int i) -> StatusOr<Bytes> {
        TESSERA_ASSIGN_OR_RETURN(const RawShard term, TensorAccess::raw_shard(by_term, i));
        return resized(term.data, count, bits_size, size);
      });
  TESSERA_ASSIGN_OR_RETURN(const RawShard whole, TensorAccess::raw_to_host(values, "to_string"));
  return Bytes(whole.data, whole.data + count * size);
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const DTensor& tensor) {
  if (!tensor.valid()) return out << "empty DTensor";
  const TensorRep& rep = TensorAccess::rep(tensor);
  out << dtype_name(rep.dtype) << " " << shape_to_string(*rep.shape) << " under "
      << tensor.layout().to_string_with_mesh();
  if (const Status status = tensor.status(); !status.ok()) {
    out << ", failed: " << status.message();
  } else if (rep.buffers.empty()) {
    out << ", no shard on client " << rep.runtime->job().client_id();
  } else {
    bool is_ready = true;
    for (const std::shared_ptr<const Buffer>& buffer : rep.buffers) {
      is_ready &= buffer->ready().done();
    }
    out << (is_ready ? ", ready" : ", pending");
  }
  for (const PrintedShard& shard : printed_shards(rep)) out << "\n" << shard_text(rep, shard);
  return out;
}

StatusOr<std::string> to_string(const DTensor& tensor) {
  TESSERA_RETURN_IF_ERROR(TensorAccess::error_of("to_string()", tensor));
  const TensorRep& rep = TensorAccess::rep(tensor);
  if (tensor.num_local_shards() == 0 || !internal::is_elided(*rep.shape)) {
    TESSERA_ASSIGN_OR_RETURN(const RawShard whole, TensorAccess::raw_to_host(tensor, "to_string"));
    return internal::array_text(rep.dtype, *rep.shape, whole.data);
  }
  TESSERA_RETURN_IF_ERROR(rep.runtime->devices().check_may_wait("to_string"));
  TESSERA_ASSIGN_OR_RETURN(const Bytes shown, shown_elements(tensor));
  return internal::array_text(rep.dtype, *rep.shape, shown.data());
}

}  // namespace tessera
