// SPDX-License-Identifier: Apache-2.0
//
// local_map: a function of one device's shards, run on every device.
//
//   // y = x w, rows of x over batch: no communication
//   DTensor y = local_map(Layout::parse(mesh, "[batch, -]"), {n, k}, DType::kFloat32, {x, w},
//                         [](LocalContext& local) {
//                           auto a = local.input<float>(0), b = local.input<float>(1);
//                           multiply(a.data, b.data, local.output<float>().data);
//                         });
//
// Shards are passed unchanged, partial terms too. The output of the function becomes the shard of
// the result, or its term where the output layout is partial. Nothing is sent. A second form has
// several outputs of one run. JAX: shard_map. PyTorch: local_map.
#ifndef TESSERA_DTENSOR_LOCAL_MAP_H_
#define TESSERA_DTENSOR_LOCAL_MAP_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/public.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/dtensor.h"
#include "layout/layout.h"

namespace TESSERA_PUBLIC tessera {

namespace internal {
// The part of local_map() that runs on one device.
class LocalMapPart;
// False for an empty std::function and a null function pointer.
template <class Fn>
bool holds_function(const Fn& fn) {
  if constexpr (std::is_pointer_v<Fn> || std::is_member_pointer_v<Fn>) {
    return fn != nullptr;
  } else if constexpr (requires { fn.operator bool(); }) {
    return fn.operator bool();
  } else {
    return true;
  }
}
}  // namespace internal

// An output of a device, which it writes.
template <class T>
struct MutableShardView {
  Box box;
  Shape shape;
  absl::Span<T> data;
  internal::ViewOrigin origin = {};

  // As ShardView::eigen(). Assigning a tensor of another shape is an error of the function too.
  template <int Rank>
  auto eigen() const {
    using Map = internal::EigenMap<T, Rank>;
    static_assert(internal::IsDefined<Map>, "include tessera/eigen.h to call eigen()");
    return Map::map(data, shape, origin);
  }
};

// The device of a call, as its function sees it. Lives as long as the call.
//
// A request for a view with the wrong type or index fails the op with an error that says so,
// whatever the function does afterwards. The function may continue: it gets a view of memory that
// belongs to no tensor, zeros at first, with the shape of the tensor. A missing input or output has
// the shape of output 0, followed by dims of 1 up to rank 8.
class LocalContext {
 public:
  int device_id() const { return device_id_; }
  // One coordinate per axis of the outputs' mesh.
  absl::Span<const int64_t> coordinates() const { return coordinates_; }
  int num_inputs() const { return static_cast<int>(inputs_.size()); }
  int num_outputs() const { return static_cast<int>(outputs_.size()); }
  // A GPU's stream, a cudaStream_t; null on a CPU. Views on a GPU cover the GPU's memory: the
  // function gives the stream work that reads and writes them, and returns without waiting for it.
  void* cuda_stream() const { return cuda_stream_; }
  const Box& input_box(int index) const;
  const Box& output_box(int index = 0) const;

  template <HasDType T>
  ShardView<T> input(int index) {
    internal::RawShard raw = raw_input(index, dtype_of<T>());
    ShardView<T> view;
    view.shape = raw.box.sizes;
    view.data = absl::MakeConstSpan(reinterpret_cast<const T*>(raw.data), count(raw.data, raw.box));
    view.box = std::move(raw.box);
    view.buffer = std::move(raw.buffer);
    view.origin = {errors_, has_input(index) ? index : num_inputs()};
    return view;
  }
  // Not initialised.
  template <HasDType T>
  MutableShardView<T> output(int index = 0) {
    std::byte* const data = raw_output(index, dtype_of<T>());
    const Box& box = output_box(index);
    return {box,
            box.sizes,
            absl::MakeSpan(reinterpret_cast<T*>(data), count(data, box)),
            {errors_, view_of_output(index)}};
  }

 private:
  friend class internal::LocalMapPart;
  struct Output {
    Box box;
    DType dtype;
    std::byte* data = nullptr;
  };

  bool has_input(int index) const { return index >= 0 && index < num_inputs(); }
  bool has_output(int index) const { return index >= 0 && index < num_outputs(); }
  // The number of the output in a ViewOrigin: -1, -2, ...
  int view_of_output(int index) const { return -1 - (has_output(index) ? index : num_outputs()); }
  // The shard, or memory in its place.
  internal::RawShard raw_input(int index, DType dtype);
  std::byte* raw_output(int index, DType dtype);
  static size_t count(const std::byte* data, const Box& box) {
    return data == nullptr ? 0 : static_cast<size_t>(box.num_elements());
  }
  void report_missing(absl::string_view what, int index, int given) const;

  int device_id_ = 0;
  std::vector<int64_t> coordinates_;
  std::vector<internal::RawShard> inputs_;
  std::vector<DType> input_dtypes_;
  std::vector<Output> outputs_;
  void* cuda_stream_ = nullptr;
  std::shared_ptr<internal::ViewErrors> errors_;
};

// Any callable with a LocalContext& that returns nothing or a Status. Copies of it are called on
// the threads of the local devices, at the same time, and after local_map has returned.
class LocalFn {
 public:
  template <class Fn>
  requires std::is_invocable_v<Fn&, LocalContext&> LocalFn(
      Fn fn) {  // NOLINT: a lambda is what callers pass
    if (!internal::holds_function(fn)) return;
    run_ = [fn = std::move(fn)](LocalContext& local) mutable -> Status {
      if constexpr (std::is_same_v<std::invoke_result_t<Fn&, LocalContext&>, void>) {
        std::invoke(fn, local);
        return absl::OkStatus();
      } else {
        return std::invoke(fn, local);
      }
    };
  }

  // Made from an empty std::function or a null pointer.
  bool is_empty() const { return run_ == nullptr; }
  // Requires !is_empty().
  Status operator()(LocalContext& local) const { return run_(local); }

 private:
  std::function<Status(LocalContext&)> run_;
};

// Runs `fn` once for each local device of the output's mesh. Every input must have a shard on each
// of them. An error of the function on one device becomes the error of that shard, and of every
// later collective on the tensor, on all clients. So does an exception, as Unknown with its what().
// An empty function is InvalidArgument. Text of `out_layout` is read on the mesh of input 0.
//
// The function must not wait for the device that runs it: await(), shard(), to_host(), barrier(),
// sync_devices(), shutdown() and Work::wait() of this client are FailedPrecondition there. It may
// start operations, and may drop the last handle of its client.
DTensor local_map(const LayoutArg& out_layout, const Shape& out_shape, DType out_dtype,
                  absl::Span<const DTensor> inputs, LocalFn fn);

// One of several outputs.
struct LocalOutput {
  LayoutArg layout;
  Shape shape;
  DType dtype;
};

// As above, with several outputs of one run of `fn` on each device, which it writes as
// local.output<T>(k). The tensors are in the order of `outputs`, whose layouts are on one mesh. An
// error of one run, or of one output's layout or shape, is the error of all outputs. Without
// outputs nothing runs.
//
//   std::vector<DTensor> parts = local_map({{rows, {m, k}, DType::kFloat32},
//                                           {diagonal, {m}, DType::kFloat32}}, {x}, factorise);
std::vector<DTensor> local_map(absl::Span<const LocalOutput> outputs,
                               absl::Span<const DTensor> inputs, LocalFn fn);

}  // namespace tessera

#endif  // TESSERA_DTENSOR_LOCAL_MAP_H_
