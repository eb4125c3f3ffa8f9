// SPDX-License-Identifier: Apache-2.0
//
// The parts of the body of a letter, one after the other: values as they are in memory, and texts.
#ifndef TESSERA_COLLECTIVES_SPAN_LETTER_BODY_H_
#define TESSERA_COLLECTIVES_SPAN_LETTER_BODY_H_

#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tessera::span {

// Adds values at the end. Equal values have equal bytes: join_arrivals() compares those. Not
// vector::insert(), in which gcc 12 sees writes beyond the end when it optimises.
template <class T>
void append(const T* values, size_t count, std::vector<std::byte>& body) {
  static_assert(std::has_unique_object_representations_v<T>);
  const size_t first = body.size();
  body.resize(first + count * sizeof(T));
  if (count > 0) std::memcpy(body.data() + first, values, count * sizeof(T));
}

inline void append_text(absl::string_view text, std::vector<std::byte>& body) {
  append(text.data(), text.size(), body);
}

// Takes values from the front; false where there are not as many.
template <class T>
bool take(absl::Span<const std::byte>& body, size_t count, T* values) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (count > body.size() / sizeof(T)) return false;
  if (count > 0) std::memcpy(values, body.data(), count * sizeof(T));
  body.remove_prefix(count * sizeof(T));
  return true;
}

inline std::string text_of(absl::Span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace tessera::span

#endif  // TESSERA_COLLECTIVES_SPAN_LETTER_BODY_H_
