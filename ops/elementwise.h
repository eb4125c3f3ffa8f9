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
// InvalidArgument for its operands where the result is of floats; custom_gradient() can add one.
// Integers are constant.
//
// Equal calls are decided once if the function is trivially copyable, which most lambdas are; a
// call with another function takes some microseconds more. JAX: a jitted function. NumPy:
// vectorize.
#ifndef TESSERA_OPS_ELEMENTWISE_H_
#define TESSERA_OPS_ELEMENTWISE_H_

#include <type_traits>
#include <utility>
#include <vector>

#include "base/public.h"
#include "dtensor/dtensor.h"
#include "ops/element_function.h"
#include "ops/out.h"

namespace TESSERA_PUBLIC tessera {

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
