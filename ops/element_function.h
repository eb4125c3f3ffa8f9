// SPDX-License-Identifier: Apache-2.0
//
// ElementFunction: a function of elements with its types removed, for elementwise(). Internal.
//
// The functions of this header call the user's function, on the threads of the devices and several
// at once; they change nothing else than the result.
#ifndef TESSERA_OPS_ELEMENT_FUNCTION_H_
#define TESSERA_OPS_ELEMENT_FUNCTION_H_

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
#include "base/public.h"
#include "compute/cpu/strided_walk.h"
#include "compute/strided.h"
#include "dtensor/dtensor.h"
#include "dtensor/local_map.h"
#include "ops/out.h"

namespace TESSERA_PUBLIC tessera {

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

// `Types`: the function, its result and its parameters. Empty for a function that cannot be
// compared.
template <class Types, class Fn>
std::vector<int64_t> identity_of(const Fn& fn) {
  if constexpr (!std::is_trivially_copyable_v<Fn>) {
    return {};
  } else {
    std::vector<int64_t> identity(1 + (sizeof(Fn) + 7) / 8, 0);
    identity[0] = static_cast<int64_t>(reinterpret_cast<intptr_t>(&kTypeTag<Types>));
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
  function.identity = identity_of<std::tuple<Fn, R, T...>>(fn);
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

}  // namespace tessera

#endif  // TESSERA_OPS_ELEMENT_FUNCTION_H_
