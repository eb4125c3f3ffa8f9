// SPDX-License-Identifier: Apache-2.0
//
// DTensor: one tensor of the whole job, of which this client holds its own shards.
//
//   StatusOr<Layout> rows = Layout::parse(mesh, "[batch, -]");
//   DTensor x = iota<float>({8, 6}, rows);                       each device makes its own rows
//   DTensor y = relayout(x, "[-, model]");                      bytes move (dtensor/relayout.h)
//   StatusOr<ShardView<float>> mine = y.shard<float>(0);         waits, then a view of memory
//   std::cout << y;                                              the shards that are here
//
// A DTensor is immutable, asynchronous and cheap to copy. It may carry an error instead of a value:
// an op on it fails with the same first error, and reading it returns the error, so a program may
// check only the last of several expressions. DTensor() is empty, and every use of it is
// FailedPrecondition, as of a tensor that was moved from.
//
// Invariants:
//   1. every client of the mesh holds exactly the shards of its own devices, in buffers of the
//      size of layout().box(shape(), position);
//   2. replicas hold the same bits;
//   3. under a partial layout each device holds a term; the value is their reduction.
//
// Thread-safe: relayouts of several threads of one client reach its devices in one order (client.h,
// "Threads"). Creation does not communicate; relayout and to_host do, and every client of the mesh
// must call them in the same order; so do to_string(), item() and gather_to(). TF DTensor:
// d-tensors, pack, unpack, relayout. JAX: jax.Array. PyTorch: DTensor.
#ifndef TESSERA_DTENSOR_DTENSOR_H_
#define TESSERA_DTENSOR_DTENSOR_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/public.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/index.h"
#include "layout/layout.h"
#include "relayout/plan.h"

namespace TESSERA_PUBLIC tessera {

class Buffer;   // Internal.
class Runtime;  // Internal.

namespace internal {
// Defined in tessera/eigen.h: Eigen's tensor header is slow to compile.
template <class T, int Rank>
struct EigenMap;
template <class Map>
concept IsDefined = requires {
  sizeof(Map);
};

// A shard without its type.
struct RawShard {
  Box box;
  const std::byte* data = nullptr;
  std::shared_ptr<const Buffer> buffer;
};
struct RawHostShard {
  const Shape* shape;
  const std::byte* data;
  int64_t num_elements;
};
struct RawMemory {
  const std::byte* data;
  int64_t num_elements;
};
struct TensorRep;
struct TensorAccess;

// The record of a function's mistakes with its views.
class ViewErrors;
// Identifies a view: an input of the function, or an output.
struct ViewOrigin {
  std::shared_ptr<ViewErrors> errors;  // null outside of functions
  int view = -1;                       // an input's index, or -1 - k for output k
};
}  // namespace internal

// The shard of one device, in this client's memory; keeps the buffer alive. Dense, row-major.
template <class T>
struct ShardView {
  Box box;      // in global indices
  Shape shape;  // box.sizes
  absl::Span<const T> data;
  std::shared_ptr<const void> buffer;  // keeps the memory
  internal::ViewOrigin origin = {};

  // A rank-`Rank` Eigen::TensorMap<const Eigen::Tensor<T, Rank, Eigen::RowMajor>> over the shard.
  // Where Rank is not shape.size() it throws std::invalid_argument; in a function of local_map()
  // this is the error of the function instead, and the map covers memory that belongs to no tensor.
  // Include tessera/eigen.h.
  template <int Rank>
  auto eigen() const {
    using Map = internal::EigenMap<const T, Rank>;
    static_assert(internal::IsDefined<Map>, "include tessera/eigen.h to call eigen()");
    return Map::map(data, shape, origin);
  }
};

// A whole tensor in the memory of this process. Dense, row-major.
template <class T>
struct HostTensor {
  Shape shape;
  std::vector<T> data;

  // As ShardView::eigen(). Not for bool, whose vector has no data().
  template <int Rank>
  auto eigen() const {
    using Map = internal::EigenMap<const T, Rank>;
    static_assert(internal::IsDefined<Map>, "include tessera/eigen.h to call eigen()");
    return Map::map(absl::MakeConstSpan(data), shape, {});
  }
};

class DTensor {
 public:
  // An empty tensor.
  DTensor();
  // False for DTensor() and for a tensor that was moved from.
  bool valid() const;
  DType dtype() const;
  // Global.
  const Shape& shape() const;
  // [] on {none=1} for an empty tensor, and for a tensor that failed before it had a layout.
  const Layout& layout() const;
  // Blocks until the local shards are ready; the first error. Local.
  Status await() const;
  // The error known now, without waiting.
  Status status() const;
  // A part of the tensor, one index for each of the first dims (dtensor/index.h):
  // x[{1, kAll, Range{0, -1}}]. An operation, as ops::slice(), with a gradient; a failed index is
  // the error of the result. Defined in ops/, of which every program has the library.
  DTensor operator[](std::initializer_list<Index> indices) const;
  // Describes for a terminal how this tensor was made. For an operation: its rule, the layouts to
  // which its operands were moved, the bytes of these moves, and the alternatives that were
  // compared where operands disagreed.
  std::string explain() const;

  // Number of this client's devices in the mesh; shards are numbered by local ordinal.
  int num_local_shards() const;
  // Waits for the shard, and views it. Local. InvalidArgument for an index out of range, or a T
  // that is not the dtype.
  template <HasDType T>
  StatusOr<ShardView<T>> shard(int local_device) const {
    TESSERA_ASSIGN_OR_RETURN(internal::RawShard raw, raw_shard(local_device, dtype_of<T>()));
    ShardView<T> view;
    view.shape = raw.box.sizes;
    view.data = absl::MakeConstSpan(reinterpret_cast<const T*>(raw.data),
                                    static_cast<size_t>(raw.box.num_elements()));
    view.box = std::move(raw.box);
    view.buffer = std::move(raw.buffer);
    return view;
  }
  // The whole value, partial terms reduced, on every client of the mesh. Collective over them;
  // FailedPrecondition on a client that owns none of the mesh's devices.
  template <HasDType T>
  StatusOr<HostTensor<T>> to_host() const {
    TESSERA_ASSIGN_OR_RETURN(internal::RawShard raw, raw_to_host(dtype_of<T>(), "to_host"));
    const T* first = reinterpret_cast<const T*>(raw.data);
    return HostTensor<T>{shape(), std::vector<T>(first, first + raw.box.num_elements())};
  }

  // As to_host(), on one client. The other clients get a tensor of shape [0] without waiting, and
  // receive nothing, except terms of a partial tensor that they add: plan_relayout() to a mesh of
  // one device of that client has the bytes. The
  // client need not own a device of the mesh. Collective over the clients of the mesh and that
  // client. InvalidArgument where the job has no such client.
  template <HasDType T>
  StatusOr<HostTensor<T>> gather_to(int client) const {
    TESSERA_ASSIGN_OR_RETURN(std::optional<internal::RawShard> raw,
                             raw_gather_to(client, dtype_of<T>()));
    if (!raw.has_value()) return HostTensor<T>{{0}, {}};
    const T* first = reinterpret_cast<const T*>(raw->data);
    return HostTensor<T>{shape(), std::vector<T>(first, first + raw->box.num_elements())};
  }
  // The value of a tensor of one element, of any rank. Collective, as to_host(). InvalidArgument
  // for another number of elements. numpy, PyTorch: item().
  template <HasDType T>
  StatusOr<T> item() const {
    TESSERA_ASSIGN_OR_RETURN(internal::RawShard raw, raw_item(dtype_of<T>()));
    return *reinterpret_cast<const T*>(raw.data);
  }

 private:
  friend struct internal::TensorAccess;
  explicit DTensor(std::shared_ptr<const internal::TensorRep> rep) : rep_(std::move(rep)) {}
  const internal::TensorRep& rep() const { return rep_ != nullptr ? *rep_ : moved_from(); }
  // The contents of a tensor that was moved from, and of an empty one: errors.
  static const internal::TensorRep& moved_from();
  static const internal::TensorRep& empty();
  // The tensor's error, which names `function` for an empty tensor.
  Status error_of(absl::string_view function) const;
  Status check_dtype(absl::string_view function, DType dtype) const;
  StatusOr<internal::RawShard> raw_shard(int local_device, DType dtype) const;
  StatusOr<internal::RawShard> raw_to_host(DType dtype, absl::string_view function) const;
  StatusOr<std::optional<internal::RawShard>> raw_gather_to(int client, DType dtype) const;
  StatusOr<internal::RawShard> raw_item(DType dtype) const;

  std::shared_ptr<const internal::TensorRep> rep_;  // null: moved from
};

// Waits for the local shards of all tensors, also after an error. OK, or the error of the first
// tensor in the list that has one. Local. There is no timeout here: a tensor fails at the deadline
// of its operation (ClientOptions::collective_timeout).
Status await_all(absl::Span<const DTensor> tensors);

// Writes dtype, shape, layout and status, then the values of the shards that are here and ready:
//
//   f32 [4, 3] under [x, -] on {x=2}, ready
//   device 0 [0:2, 0:3]
//   [[0. 1. 2.]
//    [3. 4. 5.]]
//
// Values are printed as numpy prints an array of the shard, elided where it has more than 1000
// elements. Local: never waits, neither for a peer nor for a device, so a pending shard has no
// values. Of shards in memory of a GPU no values are printed. Equal shards are printed once.
std::ostream& operator<<(std::ostream& out, const DTensor& tensor);

// The whole value, as numpy.array2string() formats it with its defaults: of more than 1000 elements
// it has the first and the last 3 along each dim. bf16, which numpy does not have, is formatted by
// the rules of f16. Collective as to_host(), with its errors. Of an elided tensor only the elements
// that are printed travel, after the shards of this client are ready; on a GPU each shard is copied
// to the host first.
StatusOr<std::string> to_string(const DTensor& tensor);

namespace internal {
// Calls fill(box, out) once for each distinct local box that holds the value.
using RawFill = absl::FunctionRef<void(const Box& box, std::byte* out)>;
DTensor full_raw(DType dtype, const Shape& shape, const LayoutArg& layout, const void* element);
DTensor iota_raw(DType dtype, const Shape& shape, const LayoutArg& layout);
DTensor from_host_raw(DType dtype, const std::byte* values, int64_t num_elements,
                      const Shape& shape, const LayoutArg& layout);
DTensor from_function_raw(DType dtype, const Shape& shape, const LayoutArg& layout, RawFill fill);
DTensor from_shards_raw(DType dtype, const Shape& shape, const LayoutArg& layout,
                        absl::Span<const RawHostShard> local);
DTensor from_memory_raw(DType dtype, const Shape& shape, const LayoutArg& layout,
                        absl::Span<const RawMemory> local, std::shared_ptr<void> keep_alive);
}  // namespace internal

// A tensor whose elements are all `value`. Here and below, under a partial layout the reduction of
// the terms is the value: the first device along the partial axes holds it and the others hold the
// identity (for min, max and avg all hold the value). No communication.
template <HasDType T>
DTensor full(const Shape& shape, T value, const LayoutArg& layout) {
  return internal::full_raw(dtype_of<T>(), shape, layout, &value);
}
template <HasDType T>
DTensor zeros(const Shape& shape, const LayoutArg& layout) {
  return full<T>(shape, T(0), layout);
}
template <HasDType T>
DTensor ones(const Shape& shape, const LayoutArg& layout) {
  return full<T>(shape, T(1), layout);
}
// A tensor whose element at flat row-major index i is T(i).
template <HasDType T>
DTensor iota(const Shape& shape, const LayoutArg& layout) {
  return internal::iota_raw(dtype_of<T>(), shape, layout);
}

// Every client passes the whole value, and keeps its own part. The values are copied before the
// call returns.
template <HasDType T>
DTensor from_host(absl::Span<const T> values, const Shape& shape, const LayoutArg& layout) {
  return internal::from_host_raw(dtype_of<T>(), reinterpret_cast<const std::byte*>(values.data()),
                                 static_cast<int64_t>(values.size()), shape, layout);
}
// Calls fill(box, out) once for each distinct local box, from the calling thread, before it
// returns; out has box.num_elements() elements, row-major. An exception of `fill` becomes the
// tensor's error, Unknown, which the other clients get with the next collective on the tensor.
template <HasDType T>
DTensor from_function(const Shape& shape, const LayoutArg& layout,
                      absl::FunctionRef<void(const Box& box, absl::Span<T> out)> fill) {
  return internal::from_function_raw(
      dtype_of<T>(), shape, layout, [&](const Box& box, std::byte* out) {
        fill(box, absl::Span<T>(reinterpret_cast<T*>(out), box.num_elements()));
      });
}

// The tensor whose shard on each local device, by ordinal, is given; under a partial layout its
// term. Replicas must be equal; the replicas of this client are compared. TF DTensor: pack.
template <HasDType T>
DTensor from_shards(const Shape& shape, const LayoutArg& layout,
                    absl::Span<const HostTensor<T>> local) {
  std::vector<std::vector<uint8_t>> bools;  // vector<bool> has no array of bool to point at
  bools.reserve(local.size());
  std::vector<internal::RawHostShard> raw;
  for (const HostTensor<T>& shard : local) {
    const std::byte* data;
    if constexpr (std::is_same_v<T, bool>) {
      bools.emplace_back(shard.data.begin(), shard.data.end());
      data = reinterpret_cast<const std::byte*>(bools.back().data());
    } else {
      data = reinterpret_cast<const std::byte*>(shard.data.data());
    }
    raw.push_back({&shard.shape, data, static_cast<int64_t>(shard.data.size())});
  }
  return internal::from_shards_raw(dtype_of<T>(), shape, layout, raw);
}

// The tensor over arrays of the caller, one for each local device, by ordinal, dense and row-major,
// of the shape of the device's box; otherwise as from_shards().
// - No copy on devices that are CPUs, in a job of one client. Then the arrays must stay as they are
//   until `keep_alive` is released, which the tensor and the results that share its memory hold.
// - Otherwise the elements are copied before the call returns, and `keep_alive` is released: the
//   other clients of the host must map the memory, and a GPU has its own. explain() says which.
// - Replicas may be one array. The tensor is never written to.
template <HasDType T>
DTensor from_memory(const Shape& shape, const LayoutArg& layout,
                    absl::Span<const absl::Span<const T>> local, std::shared_ptr<void> keep_alive) {
  std::vector<internal::RawMemory> raw;
  for (const absl::Span<const T> shard : local) {
    raw.push_back(
        {reinterpret_cast<const std::byte*>(shard.data()), static_cast<int64_t>(shard.size())});
  }
  return internal::from_memory_raw(dtype_of<T>(), shape, layout, raw, std::move(keep_alive));
}

}  // namespace tessera

#endif  // TESSERA_DTENSOR_DTENSOR_H_
