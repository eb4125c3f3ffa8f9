// SPDX-License-Identifier: Apache-2.0
//
// elementwise(): a C++ function of one element of each tensor, in one pass over memory.
//
//   // y = max(a x + b, 0), where b is [n] and x is [m, n]
//   const DTensor y = ops::elementwise<float, float, float>(
//       [a](float x, float b) { return std::max(a * x + b, 0.0f); }, x, b);
//
// The first type is the type of the result, the others are the types of the tensors. Without the
// others, elementwise<R>(fn, x, b) and elementwise(fn, x, b) take the types from the function,
// which then has one call operator that is no template.
//
// NumPy's broadcasting. The layouts follow by the rule of add(), but partial operands are reduced
// first. The function is copied, and is called on the threads of the devices, several at once,
// after the call has returned. It must give the same result on every client. An exception becomes
// the error of the shard, Unknown with its what().
//
// Errors: InvalidArgument where a tensor has another dtype than its type, where shapes do not
// broadcast, and for an empty function; Unimplemented on GPUs, for which a function must be
// compiled by nvcc: local_map() gives it the stream. It has no gradient: gradient() returns
// InvalidArgument for its operands; custom_gradient() can add one.
//
// Equal calls are decided once if the function is trivially copyable, which most lambdas are; a
// call with another function takes some microseconds more. JAX: a jitted function. NumPy:
// vectorize.
#ifndef TESSERA_OPS_ELEMENTWISE_H_
#define TESSERA_OPS_ELEMENTWISE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "compute/cpu/strided_walk.h"
#include "compute/strided.h"
#include "dtensor/dtensor.h"
#include "dtensor/local_map.h"
#include "ops/out.h"

namespace tessera {

namespace internal {

template <class T>
struct ArgOf {
  using type = DTensor;
};

// A function with its types removed.
struct ElementFunction {
  // Calls it for every index of a dense result of these sizes.
  using Loop = void (*)(const void* fn, absl::Span<const kernels::Strided> in,
                        absl::Span<const int64_t> sizes, std::byte* out);

  std::shared_ptr<const void> fn;  // null: an empty function
  Loop loop;
  // Equal for functions that give equal results; empty where that is not known.
  std::vector<int64_t> identity;
  std::vector<DType> dtypes;  // of the tensors
  DType result;
};

DTensor run_elementwise(ElementFunction function, absl::Span<const DTensor> tensors,
                        const ops::Out& out);

// One object for each type; its address tells types apart.
template <class T>
inline constexpr char kTypeTag = 0;

template <class Fn>
std::vector<int64_t> identity_of(const Fn& fn) {
  if constexpr (!std::is_trivially_copyable_v<Fn>) {
    return {};
  } else {
    std::vector<int64_t> identity(1 + (sizeof(Fn) + 7) / 8, 0);
    identity[0] = static_cast<int64_t>(reinterpret_cast<intptr_t>(&kTypeTag<Fn>));
    if constexpr (!std::is_empty_v<Fn>) std::memcpy(&identity[1], &fn, sizeof(Fn));
    return identity;
  }
}

// One run: the compiler may use vectors where all arrays are dense.
template <class R, class Fn, class... T>
void call_run(const Fn& fn, int64_t n, R* out, bool is_dense, std::pair<const T*, int64_t>... in) {
  if (is_dense) {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<R>(fn(in.first[i]...));
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<R>(fn(in.first[i * in.second]...));
  }
}

template <class R, class Fn, class... T, size_t... K>
void call_elements(const Fn& fn, std::index_sequence<K...>, absl::Span<const kernels::Strided> in,
                   absl::Span<const int64_t> sizes, R* out) {
  const std::array<absl::Span<const int64_t>, sizeof...(T)> strides = {in[K].strides...};
  kernels::StridedWalk walk(sizes, strides);
  const bool is_dense = ((walk.run_stride(K) == 1) && ...);
  walk.for_each_run([&](absl::Span<const int64_t> offsets) {
    call_run<R, Fn, T...>(
        fn, walk.run(), out, is_dense,
        std::pair(reinterpret_cast<const T*>(in[K].data) + offsets[K], walk.run_stride(K))...);
    out += walk.run();
  });
}

template <class R, class Fn, class... T>
ElementFunction element_function(Fn fn) {
  ElementFunction function;
  function.identity = identity_of(fn);
  if (holds_function(fn)) {
    function.fn = std::make_shared<const Fn>(std::move(fn));
  }
  function.loop = [](const void* stored, absl::Span<const kernels::Strided> in,
                     absl::Span<const int64_t> sizes, std::byte* out) {
    call_elements<R, Fn, T...>(*static_cast<const Fn*>(stored), std::index_sequence_for<T...>(), in,
                               sizes, reinterpret_cast<R*>(out));
  };
  function.dtypes = {dtype_of<T>()...};
  function.result = dtype_of<R>();
  return function;
}

// The result and the parameters of a function, without references.
template <class Fn>
struct FunctionTypes : FunctionTypes<decltype(&Fn::operator())> {};
template <class R, class... T>
struct FunctionTypes<R (*)(T...)> {
  using Result = R;
  template <class As, class Fn>
  static ElementFunction make(Fn fn) {
    return element_function<As, Fn, std::remove_cvref_t<T>...>(std::move(fn));
  }
};
template <class R, class C, class... T>
struct FunctionTypes<R (C::*)(T...) const> : FunctionTypes<R (*)(T...)> {};
template <class R, class C, class... T>
struct FunctionTypes<R (C::*)(T...) const noexcept> : FunctionTypes<R (*)(T...)> {};
template <class R, class... T>
struct FunctionTypes<R (*)(T...) noexcept> : FunctionTypes<R (*)(T...)> {};

// Tensors, and a layout as the last argument or none.
template <class... A>
inline constexpr bool kTensorsAndOut = false;
template <>
inline constexpr bool kTensorsAndOut<DTensor> = true;
template <class A, class... Rest>
inline constexpr bool kTensorsAndOut<A, Rest...> =
    std::is_same_v<A, DTensor> &&
    (kTensorsAndOut<Rest...> ||
     (sizeof...(Rest) == 1 && (std::is_convertible_v<Rest, ops::Out> && ...)));

}  // namespace internal

namespace ops {

// A tensor of elements T.
template <class T>
using Arg = typename internal::ArgOf<T>::type;

template <class R, class... T, class Fn>
requires(sizeof...(T) > 0 && std::is_invocable_v<const Fn&, T...>) DTensor
    elementwise(Fn fn, const Arg<T>&... tensors, const Out& out = {}) {
  const DTensor operands[] = {tensors...};
  return internal::run_elementwise(internal::element_function<R, Fn, T...>(std::move(fn)), operands,
                                   out);
}

// Takes the types of the tensors, and of the result where R is not given, from the function.
template <class R = void, class Fn, class... Args>
requires(internal::kTensorsAndOut<std::remove_cvref_t<Args>...>) DTensor
    elementwise(Fn fn, const Args&... args) {
  using Types = internal::FunctionTypes<Fn>;
  using Result = std::conditional_t<std::is_void_v<R>, typename Types::Result, R>;
  std::vector<DTensor> operands;
  Out out;
  const auto take = [&](const auto& arg) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(arg)>, DTensor>) {
      operands.push_back(arg);
    } else {
      out = arg;
    }
  };
  (take(args), ...);
  return internal::run_elementwise(Types::template make<std::remove_cvref_t<Result>>(std::move(fn)),
                                   operands, out);
}

}  // namespace ops

}  // namespace tessera

#endif  // TESSERA_OPS_ELEMENTWISE_H_
