// SPDX-License-Identifier: Apache-2.0
//
// The types that the functions of Group take as memory, and the type of their elements.
//
//   in    std::vector<float>, std::array, float[8], absl::Span<const float>, absl::Span<float>,
//         DeviceSpan<float>, anything with data() and size(), also const
//   out   the same where it can be written; a temporary only if it is a span
//   {}    no elements: in a call with other memory, whose element type it takes
//   inout as out, but not {}
//
// An in and an out of one call have the same element type, which has a DType. Nothing else
// compiles: const memory as an out, float beside double, or a vector<bool>, which has no array.
#ifndef TESSERA_COLLECTIVES_MEMORY_H_
#define TESSERA_COLLECTIVES_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/public.h"

namespace TESSERA_PUBLIC tessera {
namespace internal {

// The type of {}.
struct NoMemory {};

// The element type of a span of M: const where its elements cannot be written.
template <class M>
struct SpanElement {
  using type = void;  // no such span
};
template <class M>
requires requires(M& memory) { absl::MakeSpan(memory); }
struct SpanElement<M> {
  using type = std::remove_pointer_t<decltype(absl::MakeSpan(std::declval<M&>()).data())>;
};
template <class M>
using span_element = typename SpanElement<std::remove_reference_t<M>>::type;

template <class M>
inline constexpr bool kIsNoMemory = std::is_same_v<std::remove_cvref_t<M>, NoMemory>;

// The elements of M without const; void where it is no memory.
template <class M>
using element = std::remove_const_t<span_element<M>>;
template <class In, class Out>
using common_element = element<std::conditional_t<kIsNoMemory<In>, Out, In>>;

template <class M, class T>
inline constexpr bool kIsMemoryOf = kIsNoMemory<M> || std::is_same_v<element<M>, T>;

// Whether M can be written, and outlives the call if it owns its elements: an owner that is const
// has const elements, a span has not.
template <class M>
inline constexpr bool kIsWritable = kIsNoMemory<M> || (!std::is_const_v<span_element<M>> &&
                                                       (std::is_lvalue_reference_v<M> ||
                                                        !std::is_const_v<span_element<const M>>));

template <class T>
struct TypedSpans {
  absl::Span<const T> in;
  absl::Span<T> out;
};

// The memory of a call as the caller gives it; not checked.
struct CallMemory {
  const std::byte* in = nullptr;
  int64_t in_count = 0;  // elements, as the one below
  std::byte* out = nullptr;
  int64_t out_count = 0;
  DType dtype = DType::kUint8;
};

template <HasDType T>
CallMemory memory_of(absl::Span<const T> in, absl::Span<T> out) {
  return {reinterpret_cast<const std::byte*>(in.data()), static_cast<int64_t>(in.size()),
          reinterpret_cast<std::byte*>(out.data()), static_cast<int64_t>(out.size()),
          dtype_of<T>()};
}

template <class In, class Out>
auto spans_of(const In& in, Out&& out) {
  TypedSpans<internal::common_element<In, Out>> spans;
  if constexpr (!internal::kIsNoMemory<In>) spans.in = absl::MakeConstSpan(in);
  if constexpr (!internal::kIsNoMemory<Out>) spans.out = absl::MakeSpan(out);
  return spans;
}

template <class InOut>
auto span_of(InOut&& inout) {
  return spans_of(NoMemory(), inout).out;
}

}  // namespace internal

// Memory to read, as `const In& in`.
template <class In>
concept InMemory = HasDType<internal::element<In>> || internal::kIsNoMemory<In>;

// Memory to write, as `Out&& out`.
template <class Out>
concept OutMemory = internal::kIsNoMemory<Out> ||
    (HasDType<internal::element<Out>>&& internal::kIsWritable<Out>);

// Memory to read and write, as `InOut&& inout`: not {}, which has no element type.
template <class InOut>
concept InOutMemory = OutMemory<InOut> && !internal::kIsNoMemory<InOut>;

// Memory to write in a call that reads In.
template <class Out, class In>
concept OutMemoryFor =
    InMemory<In> && OutMemory<Out> && HasDType<internal::common_element<In, Out>> &&
    internal::kIsMemoryOf<Out, internal::common_element<In, Out>>;

}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_MEMORY_H_
